#include "sim/runtime/fault.h"

namespace noria::sim {

std::optional<FaultKind> fault_kind(std::string_view name) {
  if (name == "oom") {
    return FaultKind::kOutOfMemory;
  }
  if (name == "copy_error") {
    return FaultKind::kCopyError;
  }
  if (name == "slow_copy") {
    return FaultKind::kSlowCopy;
  }
  if (name == "pin_failure") {
    return FaultKind::kPinFailure;
  }
  return std::nullopt;
}

void FaultPlan::add(Injection const& injection) { pending_.push_back(injection); }

std::optional<Injection> FaultPlan::strike(FaultKind kind, int device, Bytes allocated_after) {
  std::optional<Injection> struck;
  for (auto injection = pending_.begin(); injection != pending_.end();) {
    bool const matches =
        injection->kind == kind && (injection->device < 0 || injection->device == device) &&
        (kind != FaultKind::kOutOfMemory || injection->above == 0 || allocated_after > injection->above);
    if (!matches) {
      ++injection;
      continue;
    }
    if (injection->after > 1) {
      --injection->after;
      ++injection;
      continue;
    }
    // Every injection counts the operation, also when an earlier one strikes it.
    if (!struck) {
      struck = *injection;
    }
    if (injection->count == 1) {
      injection = pending_.erase(injection);
    } else {
      if (injection->count > 1) {
        --injection->count;
      }
      ++injection;
    }
  }
  return struck;
}

}  // namespace noria::sim

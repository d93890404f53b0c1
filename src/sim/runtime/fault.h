/// Faults on request: the tests of an offloader need a device that fails when told to.
#pragma once

#include <noria/bytes.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/runtime/clock.h"

namespace noria::sim {

enum class FaultKind {
  kOutOfMemory,  ///< "oom": a device allocation throws SimOutOfMemory
  kCopyError,    ///< "copy_error": a copy never lands; SimDeviceError at the next synchronisation
  kSlowCopy,     ///< "slow_copy": a copy takes longer
  kPinFailure,   ///< "pin_failure": pinning or registering throws SimPinFailure
};

/// The kind by the name above; empty for any other.
std::optional<FaultKind> fault_kind(std::string_view name);

struct Injection {
  FaultKind kind{};
  /// The n-th matching operation from now is the first to fail; 1 is the next one.
  std::uint64_t after = 1;
  /// How many fail from there on; 0: all of them.
  std::uint64_t count = 1;
  /// Device whose operations match; -1: any. Pinning has no device.
  int device = -1;
  /// kOutOfMemory: only allocations that would bring the allocated bytes above this match.
  Bytes above = 0;
  /// kSlowCopy: duration becomes duration * factor + extra.
  double factor = 1.0;
  Nanoseconds extra = 0;
  /// kCopyError: the error stays, every later synchronisation of that device throws, until clear_error(); else it is
  /// thrown once.
  bool sticky = true;
};

/// The injections in force. Not thread-safe; the runtime guards it.
class FaultPlan {
 public:
  void add(Injection const& injection);
  void clear() { pending_.clear(); }

  /// Counts one operation of this kind and returns the injection that strikes it, if any.
  /// `allocated_after`: bytes that would be allocated after it, for kOutOfMemory.
  std::optional<Injection> strike(FaultKind kind, int device, Bytes allocated_after = 0);

 private:
  std::vector<Injection> pending_;
};

}  // namespace noria::sim

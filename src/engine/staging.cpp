#include "engine/staging.h"

#include <algorithm>
#include <exception>
#include <string>

#include "core/log.h"

namespace noria {
namespace {

std::shared_ptr<HostBlock> block_for(DeviceBackend& backend, Bytes bytes, bool may_pin) {
  if (may_pin && backend.capabilities().pinned_memory) {
    try {
      return HostBlock::pinned(backend, bytes);
    } catch (std::exception const& error) {
      log_once(
          LogLevel::kWarning, "staging:" + backend.device().str(),
          "the system refuses to page-lock " + format_bytes(bytes) + " for staging (" + error.what() +
              "); copies from pageable memory and from the disk hold up the host. Raise the limit of locked memory");
    }
  }
  return HostBlock::pageable(bytes);
}

}  // namespace

Staging::Staging(DeviceBackend& backend, std::size_t slots, Bytes bytes, bool may_pin) : backend_(backend) {
  for (std::size_t i = 0; i < slots; ++i) {
    slots_.push_back({.block = block_for(backend, bytes, may_pin), .copied = {}});
  }
}

std::optional<std::size_t> Staging::take() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (!slot.taken && (!slot.copied.recorded() || slot.copied.query())) {
      slot.taken = true;
      return i;
    }
  }
  return std::nullopt;
}

std::optional<std::size_t> Staging::wait_and_take() {
  std::optional<std::size_t> oldest;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].taken && (!oldest || slots_[i].turn < slots_[*oldest].turn)) {
      oldest = i;
    }
  }
  if (oldest) {
    if (slots_[*oldest].copied.recorded()) {
      slots_[*oldest].copied.synchronize();
    }
    slots_[*oldest].taken = true;
  }
  return oldest;
}

void Staging::copied_by(std::size_t slot, c10::Stream stream) {
  Slot& used = slots_[slot];
  used.taken = false;
  used.turn = ++turns_;
  if (backend_.capabilities().events) {
    if (!used.copied) {
      used.copied = backend_.new_event();
    }
    used.copied.record(stream);
  }
}

Bytes Staging::booked_bytes() const {
  Bytes sum = 0;
  for (Slot const& slot : slots_) {
    sum += slot.block->booked_bytes();
  }
  return sum;
}

}  // namespace noria

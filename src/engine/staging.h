/// Page-locked host memory that bytes pass through on their way from pageable memory or a disk to a device.
#pragma once

#include <noria/device_backend.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/host_home.h"

namespace noria {

/// A few slots, each as large as the largest group that passes through. A slot is filled by the host or by reads, then
/// copied to the device, and is free again when that copy is done.
class Staging {
 public:
  /// `slots` blocks of `bytes`, page-locked if they may be, the device has that and the system allows it.
  Staging(DeviceBackend& backend, std::size_t slots, Bytes bytes, bool may_pin);

  /// A free slot, now taken; nothing when all are filled or being copied.
  std::optional<std::size_t> take();
  /// As take(), and waits for the copy that was given first. Nothing when every slot is taken and none is copied.
  std::optional<std::size_t> wait_and_take();
  [[nodiscard]] std::byte* data(std::size_t slot) const { return slots_[slot].block->data(); }
  /// The slot's bytes have been given to `stream` to copy: it is free once that is done.
  void copied_by(std::size_t slot, c10::Stream stream);
  /// The slot's bytes are not wanted.
  void give_back(std::size_t slot) { slots_[slot].taken = false; }

  [[nodiscard]] bool is_pinned() const { return slots_.front().block->is_pinned(); }
  [[nodiscard]] Bytes booked_bytes() const;

 private:
  struct Slot {
    std::shared_ptr<HostBlock> block;
    Event copied;
    std::uint64_t turn = 0;  // of its latest copy
    bool taken = false;      // filled or being filled, and not yet given to a stream
  };

  DeviceBackend& backend_;
  std::vector<Slot> slots_;
  std::uint64_t turns_ = 0;
};

}  // namespace noria

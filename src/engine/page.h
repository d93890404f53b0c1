/// One physical storage of the model, and the pointer that the engine gives it and takes away.
#pragma once

#include <c10/core/StorageImpl.h>
#include <noria/bytes.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "plan/order.h"

namespace noria {

class Engine;

/// Note [Pages]
/// A managed weight is an ordinary tensor of the onload device over one StorageImpl that is never reallocated. Loading
/// writes the StorageImpl's data pointer, evicting takes it away and makes every access raise. All tensors and views of
/// the storage follow: tied weights, tensors saved for backward, compiled code. The page is the context of that
/// DataPtr: its deleter tells a managed storage from any other with one comparison, and says when the storage has died.
/// The engine holds no tensor and no reference to the storage, since torch.utils.swap_tensors refuses tensors that
/// others hold.
class Page {
 public:
  Page(std::string name, Bytes bytes, plan::GroupIndex group, Bytes offset)
      : name_(std::move(name)), bytes_(bytes), offset_(offset), group_(group) {}
  Page(Page const&) = delete;
  Page& operator=(Page const&) = delete;

  /// A new storage of `device` for this page; closed. Keeps `engine` alive until the storage dies or is detached.
  c10::intrusive_ptr<c10::StorageImpl> make_storage(c10::Device device, std::shared_ptr<Engine> engine);
  /// Takes over an existing storage of the onload device, whose bytes are given up; closed.
  void adopt(c10::StorageImpl* storage, std::shared_ptr<Engine> engine);

  /// The storage may be read and written at `address` from now on. Does nothing when the storage has died.
  void open(std::byte* address);
  /// Access raises from now on, with `reason` in the text when it is not empty.
  void close(std::string const& reason = {});
  /// Gives the storage memory of its own and lets it go; returns the engine reference that it held.
  std::shared_ptr<Engine> detach(c10::DataPtr data);

  /// The storage is gone: drops it, and returns the engine reference that it held.
  std::shared_ptr<Engine> forget_storage();

  /// The page behind a storage, null for any storage that is not managed. No lock: safe while the storage is alive.
  static Page* of(c10::StorageImpl* storage) {
    c10::DataPtr const& data = storage->_mutable_data_ptr_no_checks();
    return data.get_deleter() == &Page::storage_died ? static_cast<Page*>(data.get_context()) : nullptr;
  }

  [[nodiscard]] std::string const& name() const { return name_; }
  [[nodiscard]] Bytes bytes() const { return bytes_; }
  [[nodiscard]] Bytes offset() const { return offset_; }  ///< from the start of its group
  [[nodiscard]] plan::GroupIndex group() const { return group_; }
  [[nodiscard]] bool alive() const { return storage_ != nullptr; }
  [[nodiscard]] bool is_open() const { return open_.load(std::memory_order_acquire); }
  [[nodiscard]] c10::StorageImpl* storage() const { return storage_; }
  [[nodiscard]] Engine* engine() const { return engine_.get(); }

  /// Written by an operator since it was loaded or written back. Set without the engine's lock.
  void mark_dirty() { dirty_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool dirty() const { return dirty_.load(std::memory_order_relaxed); }
  /// As close, with a reason that stays while the page is refused to an operator.
  void refuse(std::string reason) {
    refusal_ = std::move(reason);
    close(refusal_);
  }
  /// Operators under way to which it is refused. The engine's lock guards it.
  std::uint32_t& refusals() { return refusals_; }
  void clean() { dirty_.store(false, std::memory_order_relaxed); }

 private:
  static void storage_died(void* page);
  void set_pointer(std::byte* address);

  std::string name_;
  Bytes bytes_;
  Bytes offset_;
  plan::GroupIndex group_;
  c10::StorageImpl* storage_ = nullptr;
  std::shared_ptr<Engine> engine_;
  std::atomic<bool> open_{false};
  std::atomic<bool> dirty_{false};
  std::uint32_t refusals_ = 0;
  std::string refusal_;
};

}  // namespace noria

#include "engine/page.h"

#include <noria/error.h>

#include "engine/engine.h"

namespace noria {

c10::intrusive_ptr<c10::StorageImpl> Page::make_storage(c10::Device device, std::shared_ptr<Engine> engine) {
  NORIA_ASSERT(!alive(), "a page has one storage");
  engine_ = std::move(engine);
  auto storage = c10::make_storage_impl(c10::StorageImpl::use_byte_size_t{}, static_cast<int64_t>(bytes_),
                                        c10::DataPtr(nullptr, this, &Page::storage_died, device),
                                        c10::GetAllocator(device.type()), /*resizable=*/false, device);
  storage_ = storage.get();
  close();
  return storage;
}

void Page::adopt(c10::StorageImpl* storage, std::shared_ptr<Engine> engine) {
  NORIA_ASSERT(!alive(), "a page has one storage");
  engine_ = std::move(engine);
  storage_ = storage;
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, this, &Page::storage_died, storage->device()));
  storage->set_resizable(false);
  close();
}

void Page::set_pointer(std::byte* address) {
  c10::DataPtr& slot = storage_->_mutable_data_ptr_no_checks();
  // The context moves from the old pointer to the new one: replacing the pointer must not look like a death.
  std::unique_ptr<void, c10::DeleterFnPtr> context(slot.move_context());
  c10::Device const device = slot.device();
  slot = c10::DataPtr(address, context.release(), &Page::storage_died, device);
}

void Page::open(std::byte* address) {
  if (!alive()) {
    return;
  }
  set_pointer(address);
  storage_->clear_data_ptr_access_error_msg_();
  open_ = true;
}

void Page::close(std::string const& given) {
  std::string const& reason = given.empty() && refusals_ > 0 ? refusal_ : given;
  open_ = false;
  if (!alive()) {
    return;
  }
  set_pointer(nullptr);
  // Despite its name this PyTorch call only sets the text and the check; the pointer above is null for kernels that
  // would not check.
  storage_->release_data_and_set_meta_custom_data_ptr_error_msg_(
      std::string(kEvictedPrefix) + name_ +
      (reason.empty() ? " is not on the device now. Use it through a PyTorch operator or its module, or inside "
                        "`with offload.resident(module):`"
                      : " " + reason));
}

std::shared_ptr<Engine> Page::detach(c10::DataPtr data) {
  std::shared_ptr<Engine> engine = std::move(engine_);
  if (alive()) {
    c10::DataPtr& slot = storage_->_mutable_data_ptr_no_checks();
    std::unique_ptr<void, c10::DeleterFnPtr> context(slot.move_context());
    NORIA_ASSERT(context.release() == this, "the context of a managed storage is its page");
    storage_->set_data_ptr_noswap(std::move(data));
    storage_->clear_data_ptr_access_error_msg_();
    storage_->set_resizable(storage_->allocator() != nullptr);
    storage_ = nullptr;
  }
  open_ = false;
  return engine;
}

std::shared_ptr<Engine> Page::forget_storage() {
  storage_ = nullptr;
  open_ = false;
  return std::move(engine_);
}

void Page::storage_died(void* context) {
  auto* const page = static_cast<Page*>(context);
  // May be the last reference to the engine, and so to this page: nothing after it.
  std::shared_ptr<Engine> const engine = page->engine_;
  if (engine) {
    engine->on_storage_death(*page);
  }
}

}  // namespace noria

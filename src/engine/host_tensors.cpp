#include "engine/host_tensors.h"

#include <noria/error.h>

#include "engine/tensor_table.h"

namespace noria {

std::pair<Engine*, plan::PageIndex> managed(at::Tensor const& tensor) {
  Page* const page = tensor.has_storage() ? Page::of(tensor.storage().unsafeGetStorageImpl()) : nullptr;
  NORIA_CHECK(page != nullptr && page->engine() != nullptr, Error, "the tensor is not managed by noria");
  return {page->engine(), page->engine()->index_of(*page)};
}

at::Tensor HostTensors::of(at::Tensor const& tensor) {
  auto const [engine, page] = managed(tensor);
  c10::intrusive_ptr<c10::StorageImpl>& storage = storages_[{engine, page}];
  std::byte* data = nullptr;
  std::shared_ptr<HostBlock> block = engine->host_bytes(page, &data);
  if (!storage || storage->data() != data) {
    auto* const keep = new std::shared_ptr<HostBlock>(std::move(block));
    c10::DataPtr pointer(data, keep, [](void* p) { delete static_cast<std::shared_ptr<HostBlock>*>(p); }, c10::kCPU);
    storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t{},
                                                    static_cast<int64_t>(engine->page(page).bytes()),
                                                    std::move(pointer), c10::GetAllocator(c10::kCPU), false);
  }
  return tensor_over(storage, c10::kCPU, tensor, tensor.storage_offset());
}

}  // namespace noria

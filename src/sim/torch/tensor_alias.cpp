#include "sim/torch/tensor_alias.h"

#include <c10/core/CPUAllocator.h>

namespace noria::simtorch {
namespace {

constexpr c10::DispatchKeySet kSimKeys{c10::DispatchKey::PrivateUse1};

// Raises the storage's own message when its bytes were taken away. A tensor without elements needs none, but a kernel
// may grow it into what its storage holds.
void* checked_data(at::Tensor const& tensor) {
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  if (tensor.numel() == 0) {
    return storage->_mutable_data_ptr_no_checks().get();
  }
  // The const access does not trip copy-on-write; whether a kernel may write is decided by its schema.
  void* const data = const_cast<void*>(storage->data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  TORCH_CHECK(data != nullptr,
              "the storage of this tensor has no bytes on the device: its data is not allocated (tensor of shape ",
              tensor.sizes(), " on ", tensor.device(), ")");
  return data;
}

void copy_geometry(at::Tensor const& from, c10::TensorImpl& to) {
  to.set_storage_offset(from.storage_offset());
  to.set_sizes_and_strides(from.sizes(), from.strides());
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) {
    to.set_wrapped_number(true);
  }
}

void copy_bits(at::Tensor const& from, at::Tensor const& to) {
  if (from.is_conj()) {
    to._set_conj(true);
  }
  if (from.is_neg()) {
    to._set_neg(true);
  }
}

at::Tensor alias_over(at::Tensor const& tensor, void* data, c10::Device device, c10::Allocator* allocator,
                      c10::DispatchKey key, std::size_t nbytes) {
  // Resizable, so that a kernel may grow an `out=` operand; the caller then finds another pointer and adopts it.
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, c10::DataPtr(data, device), allocator, true);
  at::Tensor alias =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), tensor.dtype());
  copy_geometry(tensor, *alias.unsafeGetTensorImpl());
  copy_bits(tensor, alias);
  return alias;
}

}  // namespace

at::Tensor cpu_alias(at::Tensor const& tensor) {
  if (!on_sim(tensor)) {
    return tensor;
  }
  void* const data = checked_data(tensor);
  std::size_t const nbytes = data == nullptr ? 0 : tensor.storage().nbytes();
  return alias_over(tensor, data, c10::kCPU, c10::GetCPUAllocator(), c10::DispatchKey::CPU, nbytes);
}

at::Tensor shape_alias(at::Tensor const& tensor) {
  if (!on_sim(tensor)) {
    return tensor;
  }
  return alias_over(tensor, nullptr, c10::kCPU, c10::GetCPUAllocator(), c10::DispatchKey::CPU,
                    tensor.storage().nbytes());
}

at::Tensor meta_alias(at::Tensor const& tensor) {
  return alias_over(tensor, nullptr, c10::kMeta, c10::GetAllocator(c10::kMeta), c10::DispatchKey::Meta,
                    tensor.storage().nbytes());
}

at::Tensor view_of(at::Tensor const& base, at::Tensor const& shape) {
  c10::DispatchKeySet const bits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                                             base.key_set() - bits, shape.dtype());
  copy_geometry(shape, *view.unsafeGetTensorImpl());
  copy_bits(shape, view);
  return view;
}

at::Tensor sim_tensor(c10::Storage storage, at::Tensor const& shape) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), kSimKeys, shape.dtype());
  copy_geometry(shape, *tensor.unsafeGetTensorImpl());
  copy_bits(shape, tensor);
  return tensor;
}

ByteRange byte_range(at::Tensor const& tensor) {
  if (tensor.numel() == 0) {
    return {};
  }
  auto const* const data = static_cast<std::byte const*>(tensor.storage().unsafeGetStorageImpl()->data());
  if (data == nullptr) {
    return {};
  }
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  auto const itemsize = static_cast<std::int64_t>(tensor.itemsize());
  auto const first =
      reinterpret_cast<std::uintptr_t>(data) + static_cast<std::uintptr_t>(tensor.storage_offset() * itemsize);
  return {first, first + static_cast<std::uintptr_t>((last + 1) * itemsize)};
}

std::size_t distinct_bytes(at::Tensor const& tensor) {
  std::int64_t count = 1;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) != 0 || tensor.size(dim) == 0) {
      count *= tensor.size(dim);
    }
  }
  return static_cast<std::size_t>(count) * tensor.itemsize();
}

}  // namespace noria::simtorch

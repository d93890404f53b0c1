// View operators: new geometry over the same storage. They look at shapes only, so a view of a weight whose bytes are
// not on the device is as good as any other.
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <torch/library.h>

#include "sim/torch/operator_info.h"
#include "sim/torch/registration.h"
#include "sim/torch/tensor_alias.h"

namespace noria::simtorch {
namespace {

at::Tensor over_same_storage(at::Tensor const& self, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                             std::int64_t offset) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(self.storage()),
                                                             self.key_set(), self.dtype());
  view.unsafeGetTensorImpl()->set_storage_offset(offset);
  view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return view;
}

void check_fits(at::Tensor const& self, c10::IntArrayRef sizes, c10::IntArrayRef strides, std::int64_t offset) {
  for (std::int64_t const stride : strides) {
    TORCH_CHECK(stride >= 0, "as_strided: Negative strides are not supported at the moment, got strides: ", strides);
  }
  std::size_t const needed = at::detail::computeStorageNbytes(sizes, strides, self.itemsize(), 0);
  if (needed == 0) {
    return;
  }
  std::size_t const offset_bytes = static_cast<std::size_t>(offset) * self.itemsize();
  TORCH_CHECK(offset >= 0 && needed + offset_bytes <= self.storage().nbytes(), "setStorage: sizes ", sizes,
              ", strides ", strides, ", storage offset ", offset, ", and itemsize ", self.itemsize(),
              " requiring a storage size of ", needed + offset_bytes, " are out of bounds for storage of size ",
              self.storage().nbytes());
}

at::Tensor as_strided(at::Tensor const& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  auto const sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto const strides = C10_AS_INTARRAYREF_SLOW(stride);
  TORCH_CHECK(sizes.size() == strides.size(), "mismatch in length of strides and shape");
  std::int64_t const begin = offset ? offset->guard_int(__FILE__, __LINE__) : self.storage_offset();
  check_fits(self, sizes, strides, begin);
  return over_same_storage(self, sizes, strides, begin);
}

at::Tensor view(at::Tensor const& self, c10::SymIntArrayRef size) {
  at::DimVector const sizes = at::infer_size_dv(C10_AS_INTARRAYREF_SLOW(size), self.numel());
  auto const strides = at::detail::computeStride(self.sizes(), self.strides(), sizes);
  TORCH_CHECK(
      strides.has_value(),
      "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
      "contiguous subspaces). Use .reshape(...) instead.");
  return over_same_storage(self, sizes, *strides, self.storage_offset());
}

at::Tensor reshape_alias(at::Tensor const& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return over_same_storage(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), self.storage_offset());
}

// Any other view: the CPU's kernel says the geometry.
void boxed_view(c10::OperatorHandle const& op, torch::jit::Stack* stack) {
  std::size_t const first = stack->size() - op.schema().arguments().size();
  at::Tensor const base = (*stack)[first].toTensor();
  (*stack)[first] = shape_alias(base);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  stack->back() = view_of(base, stack->back().toTensor());
}

}  // namespace

void register_views(torch::Library& library) {
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("_reshape_alias", &reshape_alias);
  for (char const* name : {"unfold", "view_as_real", "view_as_complex"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&boxed_view>());
  }
}

}  // namespace noria::simtorch

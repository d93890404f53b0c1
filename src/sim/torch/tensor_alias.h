/// Two views of the same bytes: a simulated tensor, and the CPU tensor that CPU kernels are given in its place.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace noria::simtorch {

/// True for a defined tensor of the simulated device.
inline bool on_sim(at::Tensor const& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

/// A CPU tensor over the bytes of `tensor`, with its shape, strides, conj and neg bits. It owns nothing: the caller
/// keeps `tensor` alive. Raises what the storage raises when its bytes are not there (an evicted weight), unless the
/// tensor has no elements. Tensors that are not on the simulated device come back as they are.
at::Tensor cpu_alias(at::Tensor const& tensor);

/// The same with no bytes behind it: for view operators, which look at shapes only and must not need the bytes.
at::Tensor shape_alias(at::Tensor const& tensor);

/// A Meta tensor of the same shape and strides as one of the simulated device or the CPU, for operators that are
/// planned and not run.
at::Tensor meta_alias(at::Tensor const& tensor);

/// A simulated tensor over the storage of `base`, with shape, strides, offset, dtype and bits of `shape`.
at::Tensor view_of(at::Tensor const& base, at::Tensor const& shape);

/// A simulated tensor of the shape of `shape` over `storage`.
at::Tensor sim_tensor(c10::Storage storage, at::Tensor const& shape);

/// The bytes between the first and the last element of `tensor`, empty when it has no elements.
/// Raises like cpu_alias when the bytes are not there.
struct ByteRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  [[nodiscard]] std::size_t size() const { return end - begin; }
  [[nodiscard]] bool empty() const { return begin == end; }
};
ByteRange byte_range(at::Tensor const& tensor);

/// Bytes that a kernel has to move to read or write every element once; a broadcast element counts once.
std::size_t distinct_bytes(at::Tensor const& tensor);

}  // namespace noria::simtorch

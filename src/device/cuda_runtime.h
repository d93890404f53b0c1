/// The calls of the CUDA runtime (or HIP's, which has the same signatures) that PyTorch's interfaces do not offer.
/// Looked up in the library that PyTorch has loaded; nothing of CUDA is needed to build.
#pragma once

#include <cstddef>
#include <string>

namespace noria {

struct CudaRuntime {
  /// cudaMemcpyKind, the same numbers in HIP.
  enum class Direction : int { kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3 };

  int (*memcpy_async)(void* dst, void const* src, std::size_t bytes, int direction, void* stream) = nullptr;
  int (*memset_async)(void* dst, int value, std::size_t bytes, void* stream) = nullptr;
  int (*host_register)(void* host, std::size_t bytes, unsigned flags) = nullptr;
  int (*host_unregister)(void* host) = nullptr;
  int (*memory_info)(std::size_t* free_bytes, std::size_t* total_bytes) = nullptr;
  int (*device_attribute)(int* value, int attribute, int device) = nullptr;
  int (*last_error)() = nullptr;
  char const* (*error_text)(int error) = nullptr;
  std::string library;  ///< which one was found; empty when none

  [[nodiscard]] bool loaded() const noexcept { return !library.empty(); }
};

/// The runtime that is loaded in this process; all null when there is none. Never loads one.
CudaRuntime find_cuda_runtime();

}  // namespace noria

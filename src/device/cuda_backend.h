/// cuda and ROCm: the generic backend, with raw copies, exact pinned memory and memory figures from the runtime
/// library.
#pragma once

#include "device/cuda_runtime.h"
#include "device/generic_backend.h"

namespace noria {

class CudaBackend : public GenericBackend {
 public:
  /// `runtime` may be empty: the backend is then the generic one.
  CudaBackend(c10::Device device, CudaRuntime runtime);

  PinnedBlock allocate_pinned(Bytes bytes) override;
  MemoryInfo mem_get_info() override;
  void copy_to_device(void* device_dst, void const* host_src, Bytes bytes, c10::Stream stream) override;
  void copy_to_host(void* host_dst, void const* device_src, Bytes bytes, c10::Stream stream) override;
  void copy_on_device(void* dst, void const* src, Bytes bytes, c10::Stream stream) override;
  void fill(void* device_dst, int byte, Bytes bytes, c10::Stream stream) override;

 protected:
  Probe probe() override;

 private:
  void copy(void* dst, void const* src, Bytes bytes, CudaRuntime::Direction direction, c10::Stream stream);
  /// Throws noria::Error with the runtime's text; clears its sticky error, which the next caller would get.
  void check(int status, std::string const& what) const;

  CudaRuntime runtime_;
};

}  // namespace noria

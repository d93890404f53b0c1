/// The cpu as a device of its own: synchronous streams and events, host memory, the process's resident set as
/// statistics.
#pragma once

#include <noria/device_backend.h>

namespace noria {

class CpuBackend final : public DeviceBackend {
 public:
  /// Throws std::invalid_argument for an index other than 0.
  explicit CpuBackend(c10::Device device);

  int device_count() const override { return 1; }
  int current_device() const override { return 0; }
  int set_current_device() override { return 0; }
  void restore_current_device(int /*index*/) override {}

  c10::Stream current_stream() override;
  c10::Stream default_stream() override;
  c10::Stream new_stream(int priority) override;
  c10::Stream set_current_stream(c10::Stream stream) override;
  Event new_event(bool timing) override;

  c10::DataPtr allocate(Bytes bytes) override;
  PinnedBlock allocate_pinned(Bytes bytes) override;
  bool is_pinned(void const* /*host*/) override { return false; }
  void empty_cache() override {}
  Bytes memory_allocated() override;
  Bytes max_memory_allocated() override;
  void reset_peak_memory_stats() override;
  MemoryInfo mem_get_info() override;

  void copy_to_device(void* device_dst, void const* host_src, Bytes bytes, c10::Stream stream) override;
  void copy_to_host(void* host_dst, void const* device_src, Bytes bytes, c10::Stream stream) override;
  void copy_on_device(void* dst, void const* src, Bytes bytes, c10::Stream stream) override;
  void fill(void* device_dst, int byte, Bytes bytes, c10::Stream stream) override;

  void synchronize() override {}
  void synchronize(c10::Stream /*stream*/) override {}

  void manual_seed(std::uint64_t seed) override;
  at::Tensor rng_state() override;
  void set_rng_state(at::Tensor const& state) override;

  bool is_out_of_memory(std::exception const& error) const override;

 protected:
  Probe probe() override;
};

}  // namespace noria

/// The backend of every device that PyTorch's C++ interfaces describe: guard, allocator, hooks. Vendors override parts.
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>
#include <noria/device_backend.h>

#include <atomic>

namespace c10 {
struct DeviceAllocator;
}  // namespace c10

namespace noria {

class GenericBackend : public DeviceBackend {
 public:
  /// Throws std::invalid_argument when PyTorch has no such device here; the text says what is there.
  explicit GenericBackend(c10::Device device);

  int device_count() const override;
  int current_device() const override;
  int set_current_device() override;
  void restore_current_device(int index) override;

  c10::Stream current_stream() override;
  c10::Stream default_stream() override;
  c10::Stream new_stream(int priority) override;
  c10::Stream set_current_stream(c10::Stream stream) override;
  Event new_event(bool timing) override;

  c10::DataPtr allocate(Bytes bytes) override;
  PinnedBlock allocate_pinned(Bytes bytes) override;
  bool is_pinned(void const* host) override;
  void empty_cache() override;
  Bytes memory_allocated() override;
  Bytes max_memory_allocated() override;
  void reset_peak_memory_stats() override;
  MemoryInfo mem_get_info() override;

  void copy_to_device(void* device_dst, void const* host_src, Bytes bytes, c10::Stream stream) override;
  void copy_to_host(void* host_dst, void const* device_src, Bytes bytes, c10::Stream stream) override;
  void copy_on_device(void* dst, void const* src, Bytes bytes, c10::Stream stream) override;
  void fill(void* device_dst, int byte, Bytes bytes, c10::Stream stream) override;

  void synchronize() override;
  void synchronize(c10::Stream stream) override;

  void manual_seed(std::uint64_t seed) override;
  at::Tensor rng_state() override;
  void set_rng_state(at::Tensor const& state) override;

  bool is_out_of_memory(std::exception const& error) const override;

 protected:
  Probe probe() override;

  [[nodiscard]] c10::impl::VirtualGuardImpl const& guard() const noexcept { return guard_; }
  /// The caching allocator of this device type, null where it has none of PyTorch's kind.
  [[nodiscard]] c10::DeviceAllocator* caching_allocator() const;
  /// Throws UnsupportedOperation unless the capability is on.
  void require(bool Capabilities::* capability, std::string_view operation);
  /// Throws std::invalid_argument unless the stream is one of this device.
  void check_stream(c10::Stream stream) const;

 private:
  c10::Stream make_stream(int priority);
  void probe_streams(Probe& found);
  void probe_events(Probe& found);
  void probe_memory(Probe& found);
  void probe_types(Probe& found);

  c10::impl::VirtualGuardImpl guard_;
  std::atomic<bool> names_default_stream_{true};
  std::atomic<bool> allocator_aligns_{true};
};

/// The number of usable devices of a type; 0 where PyTorch has no guard for it. Never throws.
int count_devices(c10::DeviceType type) noexcept;

/// The dtypes that this kind of device is known not to compute with, for devices that do not describe themselves.
std::vector<std::string> missing_types(std::string_view device_type);

/// "cuda", "xpu", ... and the name a PrivateUse1 backend was given.
std::string type_name(c10::DeviceType type);

}  // namespace noria

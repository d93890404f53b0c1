#include "sim/torch/sim_device_backend.h"

#include <noria/bytes.h>
#include <noria/device_backend.h>
#include <noria/error.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "device/generic_backend.h"
#include "sim/torch/backend.h"
#include "sim/torch/dry_run.h"

namespace noria::simtorch {
namespace {

constexpr Bytes kPageBytes = 4096;

// Host memory that runtime().register_host() page-locks: real, or in a dry run address space alone.
std::byte* take_host_memory(Bytes bytes) {
  if (dry::active()) {
    return static_cast<std::byte*>(runtime().reserve_host(bytes));
  }
  void* const memory = std::aligned_alloc(kPageBytes, align_up(bytes, kPageBytes));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return static_cast<std::byte*>(memory);
}

void give_host_memory_back(void* memory, bool reserved) {
  if (reserved) {
    runtime().release_reserved_host(memory);
  } else {
    std::free(memory);  // NOLINT(cppcoreguidelines-no-malloc): aligned_alloc's counterpart
  }
}

class SimDeviceBackend final : public GenericBackend {
 public:
  using GenericBackend::GenericBackend;

  PinnedBlock allocate_pinned(Bytes bytes) override {
    require(&Capabilities::pinned_memory, "allocate_pinned");
    if (bytes == 0) {
      return {};
    }
    bool const reserved = dry::active();
    std::byte* const memory = take_host_memory(bytes);
    try {
      runtime().register_host(memory, bytes);
    } catch (...) {
      give_host_memory_back(memory, reserved);
      throw;
    }
    return {memory, bytes, align_up(bytes, kPageBytes), [reserved](void* block) {
              runtime().unregister_host(block);
              give_host_memory_back(block, reserved);
            }};
  }
  bool is_pinned(void const* host) override { return runtime().is_pinned(host); }
  void empty_cache() override { runtime().empty_cache(device().index()); }
  Bytes memory_allocated() override { return runtime().stats(device().index()).allocated; }
  Bytes max_memory_allocated() override { return runtime().stats(device().index()).peak_allocated; }
  void reset_peak_memory_stats() override { runtime().reset_peak_stats(device().index()); }
  MemoryInfo mem_get_info() override {
    auto const info = runtime().memory_info(device().index());
    return {info.free, info.total};
  }

  void copy_to_device(void* device_dst, void const* host_src, Bytes bytes, c10::Stream stream) override {
    copy(device_dst, host_src, bytes, sim::CopyKind::kHostToDevice, stream);
  }
  void copy_to_host(void* host_dst, void const* device_src, Bytes bytes, c10::Stream stream) override {
    copy(host_dst, device_src, bytes, sim::CopyKind::kDeviceToHost, stream);
  }
  void copy_on_device(void* dst, void const* src, Bytes bytes, c10::Stream stream) override {
    copy(dst, src, bytes, sim::CopyKind::kDeviceToDevice, stream);
  }
  void write_pinned(void* pinned_dst, void const* host_src, Bytes bytes) override {
    if (!runtime().is_real(pinned_dst)) {
      return;  // a dry run's address
    }
    runtime().host_write(pinned_dst, bytes);
    std::memcpy(pinned_dst, host_src, bytes);
  }
  void fill(void* device_dst, int byte, Bytes bytes, c10::Stream stream) override {
    check_stream(stream);
    if (bytes == 0) {
      return;
    }
    std::array<sim::Range, 1> const writes{{{device_dst, bytes}}};
    auto const scope = runtime().begin_kernel(from_torch(stream), "fill", {}, writes);
    if (runtime().is_real(device_dst)) {
      std::memset(device_dst, byte, bytes);
    }
    dry::forget(device_dst, bytes);
    runtime().end_kernel(scope, {.bytes = bytes});
  }
  void synchronize() override { runtime().synchronize_device(device().index()); }
  void synchronize(c10::Stream stream) override {
    check_stream(stream);
    runtime().synchronize_stream(from_torch(stream));
  }

 protected:
  // From the configuration: trying things out would move the clock and the counters.
  Probe probe() override {
    sim::Config const& config = runtime().config();
    Probe found;
    found.on = {.streams = config.streams,
                .events = true,
                .event_timing = true,
                .async_copies = config.streams && config.pinned_memory,
                .pinned_memory = config.pinned_memory,
                .host_register = config.pinned_memory,
                .caching_allocator = config.caching_allocator,
                .memory_stats = true,
                .memory_info = true,
                .unified_memory = runtime().profile(device().index()).unified_memory,
                .generator = true,
                .float64 = true,
                .int64 = true,
                .bfloat16 = true};
    if (!config.streams) {
      found.off("streams", "the simulator was enabled with streams=False");
    }
    if (!config.pinned_memory) {
      found.off("pinned_memory", "the simulator was enabled with pinned_memory=False");
      found.off("host_register", "the simulator was enabled with pinned_memory=False");
    }
    if (!found.on.async_copies) {
      found.off("async_copies", "it needs streams and pinned memory together");
    }
    if (!config.caching_allocator) {
      found.off("caching_allocator", "the simulator was enabled with caching_allocator=False");
    }
    if (!found.on.unified_memory) {
      found.off("unified_memory", "the simulated machine has memory of its own");
    }
    return found;
  }

 private:
  void copy(void* to, void const* from, Bytes bytes, sim::CopyKind kind, c10::Stream stream) {
    check_stream(stream);
    if (bytes == 0) {
      return;
    }
    runtime().copy_async(to, from, bytes, kind, from_torch(stream), "raw copy");
    dry::forget(to, bytes);
  }
};

}  // namespace

void register_sim_device_backend() {
  DeviceBackend::register_backend(kSimDevice, [](c10::Device device) -> std::unique_ptr<DeviceBackend> {
    return std::make_unique<SimDeviceBackend>(device);
  });
}

}  // namespace noria::simtorch

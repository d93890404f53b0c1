/// A machine with round figures, so that a test can say what a run must cost.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "sim/runtime/runtime.h"

namespace noria::sim {

inline constexpr Nanoseconds kLaunch = 1000;
inline constexpr Nanoseconds kFloor = 2000;
inline constexpr Nanoseconds kLatency = 500;
inline constexpr Nanoseconds kSync = 300;
inline constexpr Nanoseconds kEvent = 100;
inline constexpr Nanoseconds kAlloc = 50000;

/// More than a test machine has. Under the thread sanitizer a process has few addresses, so there it is less.
#if defined(__SANITIZE_THREAD__)
inline constexpr Bytes kHuge = Bytes{1} << 35U;
#else
inline constexpr Bytes kHuge = Bytes{1} << 39U;
#endif

/// 1 byte/ns to the device, 1/2 back, 1/4 pageable, 10 in memory; 1000 float32 operations per ns.
inline Profile round_profile() {
  Profile profile;
  profile.name = "round";
  profile.flops.fill(1e12);
  profile.flops[static_cast<std::size_t>(ComputeType::kFloat16)] = 4e12;
  profile.memory_bytes_per_second = 10e9;
  profile.h2d_bytes_per_second = 1e9;
  profile.d2h_bytes_per_second = 0.5e9;
  profile.pageable_bytes_per_second = 0.25e9;
  profile.peer_bytes_per_second = 2e9;
  profile.copy_latency_seconds = 500e-9;
  profile.launch_seconds = 1e-6;
  profile.kernel_floor_seconds = 2e-6;
  profile.host_sync_seconds = 300e-9;
  profile.event_seconds = 100e-9;
  profile.alloc_seconds = 50e-6;
  profile.pin_seconds_per_byte = 0.1e-9;
  profile.disk_bytes_per_second = 1e9;
  profile.capacity_bytes = Bytes{1} << 30U;
  return profile;
}

inline Config config(CheckerMode checker = CheckerMode::kRaise, int devices = 1) {
  Config config;
  config.checker = checker;
  config.devices.assign(static_cast<std::size_t>(devices), {round_profile(), 0});
  return config;
}

inline Range range(void const* pointer, Bytes bytes) { return {pointer, bytes}; }

/// A kernel that takes `duration` and has no ranges other than these.
inline Interval run(Runtime& runtime, StreamRef stream, std::string_view name, std::vector<Range> const& reads,
                    std::vector<Range> const& writes, Nanoseconds duration = 100) {
  KernelCost cost;
  cost.duration = duration;
  return runtime.launch(stream, name, reads, writes, cost);
}

/// Device memory that a test may forget.
class DeviceBytes {
 public:
  DeviceBytes(Runtime& runtime, Bytes bytes, StreamRef stream = {})
      : runtime_(runtime), data_(static_cast<unsigned char*>(runtime.allocate(bytes, stream))), bytes_(bytes) {}
  ~DeviceBytes() { runtime_.free(data_); }
  DeviceBytes(DeviceBytes const&) = delete;
  DeviceBytes& operator=(DeviceBytes const&) = delete;

  [[nodiscard]] unsigned char* data() const { return data_; }
  [[nodiscard]] Range all() const { return {data_, bytes_}; }
  [[nodiscard]] Range part(Bytes begin, Bytes bytes) const { return {data_ + begin, bytes}; }
  unsigned char& operator[](std::size_t i) const { return data_[i]; }

 private:
  Runtime& runtime_;
  unsigned char* data_;
  Bytes bytes_;
};

/// Pinned memory, likewise.
class PinnedBytes {
 public:
  PinnedBytes(Runtime& runtime, Bytes bytes, unsigned char fill = 0)
      : runtime_(runtime), data_(static_cast<unsigned char*>(runtime.allocate_pinned(bytes))), bytes_(bytes) {
    std::memset(data_, fill, bytes);
  }
  ~PinnedBytes() { runtime_.free_pinned(data_); }
  PinnedBytes(PinnedBytes const&) = delete;
  PinnedBytes& operator=(PinnedBytes const&) = delete;

  [[nodiscard]] unsigned char* data() const { return data_; }
  [[nodiscard]] Range all() const { return {data_, bytes_}; }
  unsigned char& operator[](std::size_t i) const { return data_[i]; }

 private:
  Runtime& runtime_;
  unsigned char* data_;
  Bytes bytes_;
};

}  // namespace noria::sim

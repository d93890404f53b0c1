#include "device/cpu_backend.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <noria/error.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/host_memory.h"
#include "device/builtin_backends.h"
#include "device/out_of_memory.h"

namespace noria {
namespace {

constexpr std::size_t kAlignment = 512;

class CpuEvent final : public Event::Handle {
 public:
  using Clock = std::chrono::steady_clock;
  void record(c10::Stream /*stream*/) override { at_ = Clock::now(); }
  void block(c10::Stream /*stream*/) const override {}
  bool query() const override { return true; }
  void synchronize() const override {}
  double elapsed_seconds(Handle const& later) const override {
    return std::chrono::duration<double>(dynamic_cast<CpuEvent const&>(later).at_ - at_).count();
  }

 private:
  Clock::time_point at_;
};

// What PyTorch's own cpu allocator cannot say is how much was asked for.
class HostOutOfMemory final : public std::bad_alloc {
 public:
  explicit HostOutOfMemory(Bytes bytes) : message_("the host has no " + format_bytes(bytes) + " left in one piece") {}
  char const* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

thread_local c10::StreamId current_stream_id = 0;

c10::Stream stream_of(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCPU), id); }

}  // namespace

CpuBackend::CpuBackend(c10::Device device) : DeviceBackend(c10::Device(c10::kCPU)) {
  NORIA_CHECK(device.index() <= 0, std::invalid_argument,
              "device '" + device.str() + "' cannot be used: there is 1 cpu device, cpu:0 is the only one");
}

c10::Stream CpuBackend::current_stream() { return stream_of(current_stream_id); }

c10::Stream CpuBackend::default_stream() { return stream_of(0); }

c10::Stream CpuBackend::new_stream(int /*priority*/) {
  static std::atomic<c10::StreamId> last{0};
  return stream_of(++last);
}

c10::Stream CpuBackend::set_current_stream(c10::Stream stream) {
  NORIA_CHECK(stream.device_type() == c10::kCPU, std::invalid_argument,
              "the stream belongs to " + stream.device().str() + ", and this is the backend of cpu");
  auto const before = current_stream();
  current_stream_id = stream.id();
  return before;
}

Event CpuBackend::new_event(bool /*timing*/) { return Event(std::make_unique<CpuEvent>()); }

c10::DataPtr CpuBackend::allocate(Bytes bytes) {
  if (bytes == 0) {
    return {nullptr, c10::Device(c10::kCPU)};
  }
  void* data = nullptr;
  if (posix_memalign(&data, kAlignment, bytes) != 0) {
    throw HostOutOfMemory(bytes);
  }
  return {data, data, &std::free, c10::Device(c10::kCPU)};
}

PinnedBlock CpuBackend::allocate_pinned(Bytes /*bytes*/) {
  unsupported("allocate_pinned", "its own memory is host memory");
}

Bytes CpuBackend::memory_allocated() { return resident_bytes(); }

Bytes CpuBackend::max_memory_allocated() { return peak_resident_bytes(); }

void CpuBackend::reset_peak_memory_stats() { reset_peak_resident_bytes(); }

MemoryInfo CpuBackend::mem_get_info() {
  auto const memory = host_memory();
  return {memory.available, memory.total};
}

void CpuBackend::copy_to_device(void* device_dst, void const* host_src, Bytes bytes, c10::Stream /*stream*/) {
  if (bytes != 0) {
    std::memcpy(device_dst, host_src, bytes);
  }
}

void CpuBackend::copy_to_host(void* host_dst, void const* device_src, Bytes bytes, c10::Stream stream) {
  copy_to_device(host_dst, device_src, bytes, stream);
}

void CpuBackend::copy_on_device(void* dst, void const* src, Bytes bytes, c10::Stream stream) {
  copy_to_device(dst, src, bytes, stream);
}

void CpuBackend::fill(void* device_dst, int byte, Bytes bytes, c10::Stream /*stream*/) {
  if (bytes != 0) {
    std::memset(device_dst, byte, bytes);
  }
}

void CpuBackend::manual_seed(std::uint64_t seed) {
  auto generator = at::detail::getDefaultCPUGenerator();
  std::scoped_lock const lock(generator.mutex());
  generator.set_current_seed(seed);
}

at::Tensor CpuBackend::rng_state() {
  auto generator = at::detail::getDefaultCPUGenerator();
  std::scoped_lock const lock(generator.mutex());
  return generator.get_state();
}

void CpuBackend::set_rng_state(at::Tensor const& state) {
  auto generator = at::detail::getDefaultCPUGenerator();
  std::scoped_lock const lock(generator.mutex());
  generator.set_state(state);
}

bool CpuBackend::is_out_of_memory(std::exception const& error) const {
  if (dynamic_cast<std::bad_alloc const*>(&error) != nullptr ||
      dynamic_cast<c10::OutOfMemoryError const*>(&error) != nullptr || says_out_of_memory("cpu", error.what())) {
    return true;
  }
  try {
    std::rethrow_if_nested(error);
  } catch (std::exception const& nested) {
    return is_out_of_memory(nested);
  } catch (...) {
    return false;
  }
  return false;
}

DeviceBackend::Probe CpuBackend::probe() {
  Probe found;
  found.on = {.events = true,
              .event_timing = true,
              .memory_stats = true,
              .memory_info = true,
              .unified_memory = true,
              .generator = true,
              .float64 = true,
              .int64 = true,
              .bfloat16 = true};
  found.off("streams", "work on the cpu is done when the call returns; its streams order nothing");
  found.off("async_copies", "a copy on the cpu is done when the call returns");
  found.off("pinned_memory", "its own memory is host memory");
  found.off("host_register", "its own memory is host memory");
  found.off("caching_allocator", "PyTorch keeps no freed cpu memory");
  return found;
}

std::unique_ptr<DeviceBackend> make_cpu_backend(c10::Device device) { return std::make_unique<CpuBackend>(device); }

}  // namespace noria

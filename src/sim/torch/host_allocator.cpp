// Page-locked host memory as PyTorch asks for it.
#include "sim/torch/host_allocator.h"

#include <ATen/core/CachingHostAllocator.h>

#include "sim/torch/backend.h"
#include "sim/torch/registration.h"

namespace noria::simtorch {
namespace {

void release_pinned(void* pointer) {
  if (auto* const running = sim::Runtime::process_if_configured(); pointer != nullptr && running != nullptr) {
    running->free_pinned(pointer);
  }
}

class SimHostAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const pointer = runtime().allocate_pinned(bytes);
    return {pointer, pointer, &release_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* destination, void const* source, std::size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }

  bool record_event(void* pointer, void* /*context*/, c10::Stream stream) override {
    if (!runtime().is_pinned(pointer)) {
      return false;
    }
    runtime().record_pinned_use(pointer, from_torch(stream));
    return true;
  }
  void empty_cache() override { runtime().empty_pinned_cache(); }
  at::HostStats get_stats() override {
    sim::HostStats const ours = runtime().host_stats();
    at::HostStats stats;
    stats.active_bytes.current = static_cast<std::int64_t>(ours.pinned_allocated);
    stats.allocated_bytes.current = static_cast<std::int64_t>(ours.pinned_booked);
    stats.allocated_bytes.peak = static_cast<std::int64_t>(ours.peak_pinned_booked);
    stats.num_host_alloc = static_cast<std::int64_t>(ours.pins);
    return stats;
  }
  // The runtime counts for the whole process and knows no second epoch; the peaks are of the configuration.
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

}  // namespace

c10::Allocator* host_allocator() {
  static auto& allocator = *new SimHostAllocator();
  return &allocator;
}

void register_host_allocator() { at::setHostAllocator(kSimDevice, static_cast<at::HostAllocator*>(host_allocator())); }

}  // namespace noria::simtorch

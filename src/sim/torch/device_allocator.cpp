#include "sim/torch/device_allocator.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include "sim/torch/dry_run.h"
#include "sim/torch/registration.h"

namespace noria::simtorch {
namespace {

void release_block(void* pointer) {
  if (auto* const running = sim::Runtime::process_if_configured(); pointer != nullptr && running != nullptr) {
    running->free(pointer);
  }
}

void release_adopted(void* context) {
  auto* const storage = static_cast<c10::Storage*>(context);
  if (auto* const running = sim::Runtime::process_if_configured(); running != nullptr) {
    running->release_adopted(storage->mutable_data());
  }
  delete storage;  // NOLINT(cppcoreguidelines-owning-memory): the context of the DataPtr that adopt_on made
}

// Runs `allocate`; the runtime's own error becomes the one that PyTorch users catch.
template <typename Allocate>
auto with_torch_error(Allocate&& allocate) {
  try {
    return allocate();
  } catch (sim::SimOutOfMemory const& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
  }
}

void set_stat(c10::CachingAllocator::StatArray& stats, std::uint64_t current, std::uint64_t peak, std::uint64_t total,
              std::uint64_t freed) {
  auto& all = stats[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  all.current = static_cast<std::int64_t>(current);
  all.peak = static_cast<std::int64_t>(peak);
  all.allocated = static_cast<std::int64_t>(total);
  all.freed = static_cast<std::int64_t>(freed);
}

class SimAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override { return allocate_on(current_stream(), bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &release_block; }
  void copy_data(void* destination, void const* source, std::size_t bytes) const override {
    runtime().copy_async(destination, source, bytes, sim::CopyKind::kDeviceToDevice, current_stream(), "clone");
  }

  bool initialized() override { return enabled(); }
  void emptyCache(c10::MempoolId_t /*pool*/) override {
    for (int device = 0; device < device_count(); ++device) {
      runtime().empty_cache(device);
    }
  }
  void recordStream(c10::DataPtr const& data, c10::Stream stream) override {
    runtime().record_stream(data.get(), from_torch(stream));
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { runtime().reset_stats(device); }
  void resetPeakStats(c10::DeviceIndex device) override { runtime().reset_peak_stats(device); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    auto const info = runtime().memory_info(device);
    return {info.free, info.total};
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    sim::DeviceStats const ours = runtime().stats(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    set_stat(stats.allocated_bytes, ours.allocated, ours.peak_allocated, ours.allocated_total, ours.freed_total);
    set_stat(stats.requested_bytes, ours.allocated, ours.peak_allocated, ours.allocated_total, ours.freed_total);
    set_stat(stats.active_bytes, ours.allocated, ours.peak_allocated, ours.allocated_total, ours.freed_total);
    set_stat(stats.reserved_bytes, ours.reserved, ours.peak_reserved, ours.reserved, 0);
    set_stat(stats.allocation, ours.allocations - ours.frees, 0, ours.allocations, ours.frees);
    stats.num_alloc_retries = static_cast<std::int64_t>(ours.allocation_retries);
    stats.num_ooms = static_cast<std::int64_t>(ours.ooms);
    stats.num_device_alloc = static_cast<std::int64_t>(ours.device_allocations);
    stats.num_device_free = static_cast<std::int64_t>(ours.device_frees);
    return stats;
  }
};

}  // namespace

c10::Allocator* device_allocator() {
  static auto& allocator = *new SimAllocator();
  return &allocator;
}

c10::DataPtr allocate_on(sim::StreamRef stream, std::size_t bytes) {
  void* const pointer = with_torch_error([&] { return runtime().allocate(bytes, stream); });
  dry::forget(pointer, bytes);
  return {pointer, pointer, &release_block, sim_device(stream.device)};
}

c10::DataPtr adopt_on(sim::StreamRef stream, c10::Storage const& storage) {
  void* const pointer = storage.mutable_data();
  if (pointer == nullptr || storage.nbytes() == 0) {
    return {nullptr, nullptr, &release_block, sim_device(stream.device)};
  }
  with_torch_error([&] { runtime().adopt(pointer, storage.nbytes(), stream); });
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): owned by the DataPtr
  return {pointer, new c10::Storage(storage), &release_adopted, sim_device(stream.device)};
}

void register_device_allocator() { c10::SetAllocator(kSimDevice, device_allocator()); }

}  // namespace noria::simtorch

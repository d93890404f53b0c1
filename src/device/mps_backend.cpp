// mps: one queue, events of its own, memory shared with the host. Its allocator is a c10::DeviceAllocator only in newer
// PyTorch; the hooks answer in all (pytorch#186430).
#include <ATen/detail/MPSHooksInterface.h>
#include <noria/error.h>

#include "device/builtin_backends.h"
#include "device/generic_backend.h"

namespace noria {
namespace {

class MpsBackend final : public GenericBackend {
 public:
  using GenericBackend::GenericBackend;

  void empty_cache() override { at::detail::getMPSHooks().emptyCache(); }
  Bytes memory_allocated() override { return at::detail::getMPSHooks().getCurrentAllocatedMemory(); }
  MemoryInfo mem_get_info() override {
    // The system shares the memory out; beyond the recommended size it pages.
    auto const& hooks = at::detail::getMPSHooks();
    Bytes const total = hooks.getRecommendedMaxMemory();
    return {total - std::min<Bytes>(total, hooks.getDriverAllocatedMemory()), total};
  }
  void synchronize() override { at::detail::getMPSHooks().deviceSynchronize(); }

 protected:
  Probe probe() override {
    auto found = GenericBackend::probe();
    found.off("streams", "mps has one queue");
    found.off("pinned_memory", "host and device memory are the same");
    found.off("async_copies", "mps has one queue, and host and device memory are the same");
    found.on.unified_memory = true;
    found.on.caching_allocator = true;
    try {
      found.on.memory_info = mem_get_info().total_bytes != 0;
    } catch (std::exception const& error) {
      found.off("memory_info", error.what());
    }
    return found;
  }
};

}  // namespace

std::unique_ptr<DeviceBackend> make_mps_backend(c10::Device device) { return std::make_unique<MpsBackend>(device); }

}  // namespace noria

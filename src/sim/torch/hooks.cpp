// What generic PyTorch code asks an accelerator for.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <algorithm>

#include "sim/torch/backend.h"
#include "sim/torch/device_allocator.h"
#include "sim/torch/generator.h"
#include "sim/torch/host_allocator.h"
#include "sim/torch/registration.h"
#include "sim/torch/storage.h"

namespace noria::simtorch {
namespace {

class SimHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return index < device_count(); }
  void init() const override {}

  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { exchange_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return exchange_device(index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchange_device(index); }

  at::Generator const& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<SimGenerator>(index < 0 ? current_device() : index);
  }

  c10::Device getDeviceFromPtr(void* data) const override {
    auto const device = runtime().device_of(data);
    TORCH_CHECK(device.has_value(), "this address is no memory of a simulated device");
    return sim_device(*device);
  }
  bool isPinnedPtr(void const* data) const override { return runtime().is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return host_allocator(); }
  void resizePrivateUse1Bytes(c10::Storage const& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

}  // namespace

void register_hooks() {
  static auto& hooks = *new SimHooks();
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

}  // namespace noria::simtorch

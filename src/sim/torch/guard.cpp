// Streams, events and the current device, as PyTorch asks for them.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "sim/torch/backend.h"
#include "sim/torch/registration.h"

namespace noria::simtorch {
namespace {

// PyTorch keeps an event as a void*; ours holds the number itself, which is never zero.
void* as_handle(sim::EventId event) { return reinterpret_cast<void*>(event); }  // NOLINT(performance-no-int-to-ptr)

sim::EventId as_event(void* handle) { return reinterpret_cast<sim::EventId>(handle); }

class SimGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kSimDevice; }

  c10::Device exchangeDevice(c10::Device device) const override {
    return sim_device(device.index() < 0 ? current_device() : exchange_device(device.index()));
  }
  c10::Device getDevice() const override { return sim_device(current_device()); }
  void setDevice(c10::Device device) const override { exchangeDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) {
      set_device_unchecked(device.index());
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  c10::DeviceCapability getDeviceCapability(c10::Device /*device*/) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override { return to_torch(current_stream(device.index())); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return to_torch({.device = device.index() < 0 ? current_device() : device.index(), .id = 0});
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return to_torch(runtime().create_stream(device.index() < 0 ? current_device() : device.index(), priority));
  }
  // A fresh one each time: streams that share a queue would be in order by accident and hide a missing wait.
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getNewStream(device, high_priority ? -1 : 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return to_torch(exchange_stream(from_torch(stream)));
  }
  bool queryStream(c10::Stream const& stream) const override { return runtime().query_stream(from_torch(stream)); }
  void synchronizeStream(c10::Stream const& stream) const override { runtime().synchronize_stream(from_torch(stream)); }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    runtime().synchronize_device(index < 0 ? current_device() : index);
  }
  void* getStreamNativeHandle(c10::Stream stream) const override {
    return as_handle(static_cast<sim::EventId>(stream.id()));
  }

  void record(void** event, c10::Stream const& stream, c10::DeviceIndex index, c10::EventFlag flag) const override {
    if (*event == nullptr) {
      auto const device = index < 0 ? stream.device_index() : index;
      *event = as_handle(runtime().create_event(device, flag == c10::EventFlag::BACKEND_DEFAULT));
    }
    runtime().record_event(as_event(*event), from_torch(stream));
  }
  void block(void* event, c10::Stream const& stream) const override {
    if (event != nullptr) {
      runtime().wait_event(as_event(event), from_torch(stream));
    }
  }
  bool queryEvent(void* event) const override { return event == nullptr || runtime().query_event(as_event(event)); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      runtime().synchronize_event(as_event(event));
    }
  }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex /*index*/) const override {
    constexpr double kMillisecondsPerNanosecond = 1e-6;
    return static_cast<double>(runtime().elapsed(as_event(begin), as_event(end))) * kMillisecondsPerNanosecond;
  }
  void destroyEvent(void* event, c10::DeviceIndex /*index*/) const noexcept override {
    if (auto* const running = sim::Runtime::process_if_configured(); event != nullptr && running != nullptr) {
      running->destroy_event(as_event(event));
    }
  }
  void recordDataPtrOnStream(c10::DataPtr const& data, c10::Stream const& stream) const override {
    runtime().record_stream(data.get(), from_torch(stream));
  }
};

}  // namespace

void register_guard() {
  static SimGuard const guard;
  static c10::impl::DeviceGuardImplRegistrar const registrar(kSimDevice, &guard);
}

}  // namespace noria::simtorch

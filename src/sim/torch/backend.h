/// The simulated device type of this process: the runtime behind it, and the calling thread's device and streams.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>

#include "sim/runtime/runtime.h"

namespace noria::simtorch {

inline constexpr c10::DeviceType kSimDevice = c10::DeviceType::PrivateUse1;
inline constexpr std::size_t kMaxDevices = 16;

/// Registers the device type "sim" at the first call, and configures the runtime.
/// Throws noria::Error while device memory is alive, or when the process has another PrivateUse1 backend.
void enable(sim::Config config);

/// Makes PyTorch believe in `devices` simulated devices while `run_backward` runs one. Its autograd engine makes one
/// queue per device at the first backward of the process and none later, so after this enable() may come at any time.
/// Registers the device guard, and nothing else.
void reserve(int devices, std::function<void()> const& run_backward);

/// True after enable().
bool enabled() noexcept;

/// The runtime; throws noria::Error before enable().
sim::Runtime& runtime();

c10::DeviceIndex device_count() noexcept;

/// The calling thread's device.
c10::DeviceIndex current_device() noexcept;
/// Makes `index` the calling thread's device, returns what was. Raises for an index that does not exist.
c10::DeviceIndex exchange_device(c10::DeviceIndex index);
void set_device_unchecked(c10::DeviceIndex index) noexcept;

/// The calling thread's stream of a device (-1: of the current one).
sim::StreamRef current_stream(c10::DeviceIndex index = -1) noexcept;
/// Makes `stream` current for its device, returns what was. Raises for a stream that does not exist.
sim::StreamRef exchange_stream(sim::StreamRef stream);

inline c10::Device sim_device(int index) { return {kSimDevice, static_cast<c10::DeviceIndex>(index)}; }

inline c10::Stream to_torch(sim::StreamRef stream) {
  return c10::Stream(c10::Stream::UNSAFE, sim_device(stream.device), static_cast<c10::StreamId>(stream.id));
}

inline sim::StreamRef from_torch(c10::Stream stream) { return {stream.device_index(), stream.id()}; }

}  // namespace noria::simtorch

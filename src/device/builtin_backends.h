/// The backends that noria brings along.
#pragma once

#include <noria/device_backend.h>

#include <map>

namespace noria {

/// For each device type that is not described by PyTorch's generic interfaces alone.
std::map<c10::DeviceType, DeviceBackend::Factory> builtin_factories();

/// For every other type.
DeviceBackend::Factory generic_factory();

std::unique_ptr<DeviceBackend> make_cpu_backend(c10::Device device);
std::unique_ptr<DeviceBackend> make_meta_backend(c10::Device device);
std::unique_ptr<DeviceBackend> make_mps_backend(c10::Device device);
std::unique_ptr<DeviceBackend> make_cuda_backend(c10::Device device);

}  // namespace noria

#include "device/builtin_backends.h"

#include "device/generic_backend.h"

namespace noria {

std::map<c10::DeviceType, DeviceBackend::Factory> builtin_factories() {
  return {{c10::DeviceType::CPU, &make_cpu_backend},
          {c10::DeviceType::Meta, &make_meta_backend},
          {c10::DeviceType::MPS, &make_mps_backend},
          {c10::DeviceType::CUDA, &make_cuda_backend}};
}

DeviceBackend::Factory generic_factory() {
  return [](c10::Device device) { return std::make_unique<GenericBackend>(device); };
}

}  // namespace noria

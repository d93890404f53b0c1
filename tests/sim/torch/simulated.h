/// A simulated device for one test.
#pragma once

#include <ATen/ATen.h>

#include "sim/torch/backend.h"

namespace noria::simtorch {

inline sim::Config one_device(bool dry = false) {
  sim::Config config;
  config.devices.push_back({.profile = sim::profile("rtx4090")});
  config.dry = dry;
  return config;
}

inline at::TensorOptions on_device() { return at::TensorOptions().device(kSimDevice, 0); }

}  // namespace noria::simtorch

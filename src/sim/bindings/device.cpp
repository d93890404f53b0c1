#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include "sim/bindings/topics.h"
#include "sim/torch/backend.h"
#include "sim/torch/generator.h"

namespace py = pybind11;

namespace noria::simtorch {

void init_device(py::module_& m) {
  m.def("device_count", [] { return static_cast<int>(device_count()); });
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def(
      "exchange_device",
      [](int index) { return static_cast<int>(exchange_device(static_cast<c10::DeviceIndex>(index))); },
      py::arg("index"));
  m.def(
      "current_stream_id", [](int device) { return current_stream(static_cast<c10::DeviceIndex>(device)).id; },
      py::arg("device"));
  m.def(
      "set_stream", [](int device, std::int64_t id) { exchange_stream({.device = device, .id = id}); },
      py::arg("device"), py::arg("id"));
  m.def("synchronize", [](int device) { runtime().synchronize_device(device); }, py::arg("device"));
  m.def("empty_cache", [](int device) { runtime().empty_cache(device); }, py::arg("device"));
  m.def(
      "memory_info",
      [](int device) {
        auto const info = runtime().memory_info(device);
        return std::pair(info.free, info.total);
      },
      py::arg("device"));
  m.def("reset_peak_stats", [](int device) { runtime().reset_peak_stats(device); }, py::arg("device"));
  m.def(
      "default_generator", [](int device) { return default_generator(static_cast<c10::DeviceIndex>(device)); },
      py::arg("device"));
  m.def("empty_host_cache", [] { runtime().empty_pinned_cache(); });
  m.def("profile_json", [](int device) { return sim::to_json(runtime().profile(device)); }, py::arg("device"));
  m.def("profile_name", [](int device) { return runtime().profile(device).name; }, py::arg("device"));
}

}  // namespace noria::simtorch

// The stub device for Python tests: `import noria_stub_device; noria_stub_device.install("npu")`.
#include <pybind11/pybind11.h>

#include "support/stub_device.h"

namespace py = pybind11;

namespace noria::stub {
namespace {

void set(py::kwargs const& changes) {
  auto& now = settings();
  for (auto const& [key, value] : changes) {
    auto const name = py::cast<std::string>(key);
    auto const flag = [&](char const* field, bool& target) {
      if (name == field) {
        target = py::cast<bool>(value);
        return true;
      }
      return false;
    };
    bool const known = flag("streams", now.streams) || flag("stream_pool_only", now.stream_pool_only) ||
                       flag("default_stream", now.default_stream) || flag("events", now.events) ||
                       flag("timing", now.timing) || flag("synchronize_device", now.synchronize_device) ||
                       flag("synchronize_stream", now.synchronize_stream) || flag("pin", now.pin) ||
                       flag("pin_is_real", now.pin_is_real) || flag("device_allocator", now.device_allocator) ||
                       flag("memory_info", now.memory_info) || flag("generator", now.generator);
    if (name == "devices") {
      now.devices = py::cast<int>(value);
    } else if (name == "capacity") {
      now.capacity = py::cast<Bytes>(value);
    } else if (!known) {
      throw py::key_error("no setting " + name);
    }
  }
}

c10::Stream stream(int device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device)), id);
}

}  // namespace

PYBIND11_MODULE(noria_stub_device, m) {
  m.def("install", &install, py::arg("name"));
  m.def("set", &set);
  m.def("host_syncs", &host_syncs);
  m.def("operator_copies", &operator_copies);
  m.def("emptied_caches", &emptied_caches);
  m.def("pinned_blocks", &pinned_blocks);
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("allocated", [](int device) { return allocated(static_cast<c10::DeviceIndex>(device)); }, py::arg("device"));
  m.def(
      "pending", [](int device, c10::StreamId id) { return pending(stream(device, id)); }, py::arg("device"),
      py::arg("stream_id"));
}

}  // namespace noria::stub

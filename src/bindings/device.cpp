#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <noria/device_backend.h>
#include <noria/error.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/topics.h"
#include "device/generic_backend.h"
#include "device/out_of_memory.h"

namespace py = pybind11;

namespace noria {
namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;

c10::Stream stream_of(DeviceBackend const& backend, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, backend.device(), id);
}

py::dict capabilities(DeviceBackend& backend) {
  Capabilities found;
  {
    py::gil_scoped_release const release;
    found = backend.capabilities();
  }
  py::dict result;
  for (auto const& [name, field] : capability_fields()) {
    result[py::str(name.data(), name.size())] = found.*field;
  }
  return result;
}

// A copy of `tensor` in memory from the device's own pinned allocator, so that PyTorch's copies from it are tracked.
at::Tensor pin(DeviceBackend& backend, at::Tensor const& tensor) {
  if (!backend.capabilities().pinned_memory) {
    throw UnsupportedOperation(backend.device().str() +
                               " does not support pin_memory: " + backend.why_not("pinned_memory"));
  }
  c10::DeviceGuard const here(backend.device());
  auto const source = tensor.detach();
  auto const bytes =
      source.numel() == 0 ? 0 : at::detail::computeStorageNbytes(source.sizes(), source.strides(), source.itemsize());
  auto* const allocator = at::globalContext().getPinnedMemoryAllocator(backend.device().type());
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator,
                       /*resizable=*/false);
  auto pinned = at::empty({0}, source.options());
  pinned.set_(std::move(storage), 0, source.sizes(), source.strides());
  pinned.copy_(source);
  return pinned;
}

// PyTorch's errors keep their Python classes: torch.OutOfMemoryError above all.
void translate_torch(std::exception_ptr pointer) {  // NOLINT(performance-unnecessary-value-param): pybind11 asks for it
  try {
    if (pointer) {
      std::rethrow_exception(pointer);
    }
  } catch (c10::Error const&) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

void bind_event(py::module_& m) {
  py::class_<Event>(m, "Event", "A point in the work of a stream of a device whose events are noria's own.")
      .def(
          "record",
          [](Event& event, DeviceBackend& backend, c10::StreamId stream) { event.record(stream_of(backend, stream)); },
          py::arg("backend"), py::arg("stream_id"))
      .def(
          "block",
          [](Event const& event, DeviceBackend& backend, c10::StreamId stream) {
            event.block(stream_of(backend, stream));
          },
          py::arg("backend"), py::arg("stream_id"))
      .def("query", &Event::query)
      .def("synchronize", &Event::synchronize, ReleaseGil())
      .def("elapsed_seconds", &Event::elapsed_seconds, py::arg("later"));
}

using BackendClass = py::class_<DeviceBackend, std::unique_ptr<DeviceBackend, py::nodelete>>;

void bind_backend(BackendClass& backend_class) {
  backend_class
      .def_property_readonly("index",
                             [](DeviceBackend const& backend) { return static_cast<int>(backend.device().index()); })
      .def_property_readonly("device_type",
                             [](DeviceBackend const& backend) { return static_cast<int>(backend.device().type()); })
      .def("capabilities", &capabilities)
      .def("why_not", &DeviceBackend::why_not, py::arg("capability"), ReleaseGil())
      .def("device_count", &DeviceBackend::device_count)
      .def("current_device", &DeviceBackend::current_device)
      .def("set_current_device", &DeviceBackend::set_current_device)
      .def("restore_current_device", &DeviceBackend::restore_current_device, py::arg("index"))
      .def("current_stream", [](DeviceBackend& backend) { return backend.current_stream().id(); })
      .def("default_stream", [](DeviceBackend& backend) { return backend.default_stream().id(); })
      .def(
          "new_stream", [](DeviceBackend& backend, int priority) { return backend.new_stream(priority).id(); },
          py::arg("priority") = 0, ReleaseGil())
      .def(
          "set_current_stream",
          [](DeviceBackend& backend, c10::StreamId id) {
            return backend.set_current_stream(stream_of(backend, id)).id();
          },
          py::arg("stream_id"))
      .def(
          "new_event", [](DeviceBackend& backend, bool timing) { return backend.new_event(timing); },
          py::arg("timing") = false)
      .def("synchronize", py::overload_cast<>(&DeviceBackend::synchronize), ReleaseGil())
      .def(
          "synchronize_stream",
          [](DeviceBackend& backend, c10::StreamId id) { backend.synchronize(stream_of(backend, id)); },
          py::arg("stream_id"), ReleaseGil())
      .def("empty_cache", &DeviceBackend::empty_cache, ReleaseGil())
      .def("memory_allocated", &DeviceBackend::memory_allocated)
      .def("max_memory_allocated", &DeviceBackend::max_memory_allocated)
      .def("reset_peak_memory_stats", &DeviceBackend::reset_peak_memory_stats)
      .def("mem_get_info",
           [](DeviceBackend& backend) {
             auto const info = backend.mem_get_info();
             return std::pair(info.free_bytes, info.total_bytes);
           })
      .def("manual_seed", &DeviceBackend::manual_seed, py::arg("seed"), ReleaseGil())
      .def("rng_state", &DeviceBackend::rng_state, ReleaseGil())
      .def("set_rng_state", &DeviceBackend::set_rng_state, py::arg("state"), ReleaseGil())
      .def(
          "is_pinned",
          [](DeviceBackend& backend, at::Tensor const& tensor) { return backend.is_pinned(tensor.const_data_ptr()); },
          py::arg("tensor"))
      .def("pin", &pin, py::arg("tensor"), ReleaseGil());
}

}  // namespace

void init_device(py::module_& m) {
  py::register_exception_translator(&translate_torch);
  // Both classes before their methods, so that signatures can name them.
  BackendClass backend_class(m, "DeviceBackend", "All calls to one device, on PyTorch's C++ side.");
  bind_event(m);
  bind_backend(backend_class);
  m.def(
      "device_backend", [](c10::Device device) { return &DeviceBackend::get(device); }, py::arg("device"),
      py::return_value_policy::reference, "The backend of a device. ValueError where PyTorch's C++ side has none.");
  m.def("usable_device_types", [] {
    std::vector<std::string> names;
    for (auto const type : DeviceBackend::usable_types()) {
      names.push_back(type_name(type));
    }
    return names;
  });
  m.def("says_out_of_memory", &says_out_of_memory, py::arg("device_type"), py::arg("message"));
  m.def("out_of_memory_patterns", [] {
    std::vector<std::tuple<std::string, std::string, std::string>> table;
    for (auto const& pattern : out_of_memory_patterns()) {
      table.emplace_back(pattern.device_type, pattern.text, pattern.source);
    }
    return table;
  });
  m.def("missing_types", &missing_types, py::arg("device_type"),
        "The dtypes that this kind of device is known not to compute with, where it does not describe itself.");
}

}  // namespace noria

#include <noria/sim.h>
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "sim/bindings/topics.h"
#include "sim/torch/backend.h"

namespace py = pybind11;

namespace noria::simtorch {
namespace {

void enable_from_python(std::string profile, std::string profile_json, std::string overrides_json, int devices,
                        Bytes memory_bytes, bool dry, std::string checker, bool streams, bool pinned_memory,
                        bool caching_allocator, int copy_engines) {
  sim::enable({.profile = std::move(profile),
               .profile_json = std::move(profile_json),
               .overrides_json = std::move(overrides_json),
               .devices = devices,
               .memory_bytes = memory_bytes,
               .dry = dry,
               .checker = std::move(checker),
               .streams = streams,
               .pinned_memory = pinned_memory,
               .caching_allocator = caching_allocator,
               .copy_engines = copy_engines});
}

void set_checker(std::string const& name) {
  auto const mode = sim::checker_mode(name);
  if (!mode) {
    throw std::invalid_argument("checker must be 'raise', 'record' or 'off', not '" + name + "'");
  }
  runtime().set_checker(*mode);
}

void inject(std::string const& kind, std::uint64_t after, std::uint64_t count, int device, Bytes above, double factor,
            double extra_seconds, bool sticky) {
  auto const fault = sim::fault_kind(kind);
  if (!fault) {
    throw std::invalid_argument("kind must be 'oom', 'copy_error', 'slow_copy' or 'pin_failure', not '" + kind + "'");
  }
  runtime().inject({.kind = *fault,
                    .after = after,
                    .count = count,
                    .device = device,
                    .above = above,
                    .factor = factor,
                    .extra = sim::nanoseconds(extra_seconds),
                    .sticky = sticky});
}

}  // namespace

void init_configuration(py::module_& m) {
  m.def("profiles_json", [] { return std::string(sim::profiles_json()); });
  m.def("profile_names", &sim::profile_names);
  m.def("enable", &enable_from_python, py::kw_only(), py::arg("profile"), py::arg("profile_json"),
        py::arg("overrides_json"), py::arg("devices"), py::arg("memory_bytes"), py::arg("dry"), py::arg("checker"),
        py::arg("streams"), py::arg("pinned_memory"), py::arg("caching_allocator"), py::arg("copy_engines"));
  m.def("enabled", &enabled);
  m.def("forget", &sim::Runtime::forget_process, "Takes back enable(): there is no device until the next one.");
  m.def("reserve", &reserve, py::arg("devices"), py::arg("run_backward"));
  m.def("set_checker", &set_checker, py::arg("mode"));
  m.def("inject", &inject, py::arg("kind"), py::kw_only(), py::arg("after"), py::arg("count"), py::arg("device"),
        py::arg("above"), py::arg("factor"), py::arg("extra_seconds"), py::arg("sticky"));
  m.def("clear_injections", [] { runtime().clear_injections(); });
  m.def("clear_error", [](int device) { runtime().clear_error(device); }, py::arg("device"));
}

}  // namespace noria::simtorch

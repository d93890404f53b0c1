#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include "sim/bindings/topics.h"
#include "sim/torch/backend.h"

namespace py = pybind11;

namespace noria::simtorch {
namespace {

using Record = py::typing::Dict<py::str, py::object>;

Record as_dict(sim::DeviceStats const& stats) {
  Record dict;
  dict["kernels"] = stats.kernels;
  dict["copies_h2d"] = stats.copies_h2d;
  dict["copies_d2h"] = stats.copies_d2h;
  dict["copies_d2d"] = stats.copies_d2d;
  dict["bytes_h2d"] = stats.bytes_h2d;
  dict["bytes_d2h"] = stats.bytes_d2h;
  dict["bytes_d2d"] = stats.bytes_d2d;
  dict["pageable_copies"] = stats.pageable_copies;
  dict["host_syncs"] = stats.host_syncs;
  dict["event_records"] = stats.event_records;
  dict["event_waits"] = stats.event_waits;
  dict["event_queries"] = stats.event_queries;
  dict["kernel_seconds"] = sim::to_seconds(stats.kernel_time);
  dict["copy_seconds"] = sim::to_seconds(stats.copy_time);
  dict["host_wait_seconds"] = sim::to_seconds(stats.host_wait);
  dict["allocated"] = stats.allocated;
  dict["peak_allocated"] = stats.peak_allocated;
  dict["reserved"] = stats.reserved;
  dict["peak_reserved"] = stats.peak_reserved;
  dict["allocations"] = stats.allocations;
  dict["frees"] = stats.frees;
  dict["device_allocations"] = stats.device_allocations;
  dict["device_frees"] = stats.device_frees;
  dict["ooms"] = stats.ooms;
  return dict;
}

Record as_dict(sim::HostStats const& stats) {
  Record dict;
  dict["pinned_allocated"] = stats.pinned_allocated;
  dict["pinned_booked"] = stats.pinned_booked;
  dict["peak_pinned_booked"] = stats.peak_pinned_booked;
  dict["registered"] = stats.registered;
  dict["pinned_allocations"] = stats.pinned_allocations;
  dict["pins"] = stats.pins;
  dict["pin_failures"] = stats.pin_failures;
  return dict;
}

Record as_dict(sim::Access const& access) {
  Record dict;
  dict["op"] = access.op;
  dict["stream"] = access.stream;
  dict["write"] = access.write;
  return dict;
}

Record as_dict(sim::Race const& race) {
  Record dict;
  dict["first"] = as_dict(race.first);
  dict["second"] = as_dict(race.second);
  dict["device"] = race.device;
  dict["begin"] = race.begin;
  dict["end"] = race.end;
  dict["missing_wait"] = race.missing_wait;
  return dict;
}

Record as_dict(sim::Finding const& finding) {
  Record dict;
  dict["kind"] = std::string(sim::finding_name(finding.kind));
  dict["op"] = finding.op;
  dict["stream"] = finding.stream;
  dict["device"] = finding.device;
  dict["begin"] = finding.begin;
  dict["end"] = finding.end;
  dict["text"] = finding.text;
  return dict;
}

Record as_dict(sim::Span const& span) {
  Record dict;
  dict["name"] = span.name;
  dict["kind"] = std::string(sim::span_kind_name(span.kind));
  dict["device"] = span.device;
  dict["stream"] = span.stream;
  dict["engine"] = span.engine;
  dict["begin"] = sim::to_seconds(span.begin);
  dict["end"] = sim::to_seconds(span.end);
  dict["bytes"] = span.bytes;
  return dict;
}

template <typename Item>
py::typing::List<Record> as_list(std::vector<Item> const& items) {
  py::typing::List<Record> list;
  for (Item const& item : items) {
    list.append(as_dict(item));
  }
  return list;
}

}  // namespace

void init_measurements(py::module_& m) {
  m.def("clock", [](int device) { return sim::to_seconds(runtime().device_clock(device)); }, py::arg("device"));
  m.def("host_clock", [] { return sim::to_seconds(runtime().host_clock()); });
  m.def("advance_host", [](double seconds) { runtime().advance_host(sim::nanoseconds(seconds)); }, py::arg("seconds"));
  m.def("reset_clock", [] { runtime().reset_clocks(); });
  m.def("stats", [](int device) { return as_dict(runtime().stats(device)); }, py::arg("device"));
  m.def("host_stats", [] { return as_dict(runtime().host_stats()); });
  m.def("reset_stats", [](int device) { runtime().reset_stats(device); }, py::arg("device"));
  m.def("races", [] { return as_list(runtime().races()); });
  m.def("findings", [] { return as_list(runtime().findings()); });
  m.def("clear_reports", [] { runtime().clear_reports(); });
  m.def("record_timeline", [](bool on) { runtime().record_timeline(on); }, py::arg("on"));
  m.def("timeline", [] { return as_list(runtime().timeline()); });
  m.def("clear_timeline", [] { runtime().clear_timeline(); });
}

}  // namespace noria::simtorch

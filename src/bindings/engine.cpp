#include "engine/engine.h"

#include <noria/error.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstring>
#include <deque>
#include <numeric>

#include "bindings/topics.h"
#include "engine/blocking.h"
#include "engine/folder_store.h"
#include "engine/host_tensors.h"
#include "engine/net.h"
#include "engine/omission.h"
#include "engine/tensor_table.h"
#include "format/shard_set.h"
#include "io/aligned_buffer.h"
#include "io/file_mapping.h"
#include "io/reader.h"

namespace py = pybind11;

namespace noria {
namespace {

void* leave_interpreter() { return PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr; }
void enter_interpreter(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

py::dict to_dict(GroupStatus const& group) {
  return py::dict(py::arg("name") = group.name, py::arg("bytes") = group.bytes, py::arg("tier") = group.tier,
                  py::arg("resident") = group.resident, py::arg("loads") = group.loads,
                  py::arg("stalls") = group.stalls, py::arg("stall_seconds") = group.stall_seconds,
                  py::arg("dirty") = group.dirty);
}

py::dict to_dict(Status const& s) {
  py::list groups;
  for (GroupStatus const& group : s.groups) {
    groups.append(to_dict(group));
  }
  return py::dict(py::arg("device") = s.device, py::arg("budget_bytes") = s.budget_bytes,
                  py::arg("weights_bytes") = s.weights_bytes, py::arg("resident_bytes") = s.resident_bytes,
                  py::arg("streamed_bytes") = s.streamed_bytes, py::arg("device_bytes") = s.device_bytes,
                  py::arg("peak_device_bytes") = s.peak_device_bytes,
                  py::arg("host_pinned_bytes") = s.host_pinned_bytes,
                  py::arg("host_pageable_bytes") = s.host_pageable_bytes, py::arg("disk_bytes") = s.disk_bytes,
                  py::arg("passes") = s.passes, py::arg("groups") = groups, py::arg("bytes_in") = s.bytes_in,
                  py::arg("bytes_out") = s.bytes_out, py::arg("loads") = s.loads, py::arg("stalls") = s.stalls,
                  py::arg("stall_seconds") = s.stall_seconds, py::arg("host_syncs") = s.host_syncs,
                  py::arg("net_faults") = s.net_faults, py::arg("order_surprises") = s.order_surprises);
}

void unmap(void* mapping) { delete static_cast<FileMapping*>(mapping); }

plan::Grouping make_groups(std::vector<plan::ModuleNode> const& modules, TensorTable const& table,
                           std::string const& granularity, std::uint32_t blocks_per_group,
                           std::vector<std::string> const& block_modules, std::optional<Bytes> budget) {
  plan::GroupingOptions const options{.granularity = granularity == "leaf"    ? plan::Granularity::kLeaf
                                                     : granularity == "block" ? plan::Granularity::kBlock
                                                                              : plan::Granularity::kAuto,
                                      .blocks_per_group = blocks_per_group,
                                      .block_modules = block_modules};
  return Engine::group(modules, table.pages(), options, budget);
}

void write_trace(std::string const& path,
                 std::vector<std::tuple<std::string, std::string, double, double>> const& slices) {
  std::vector<TraceSlice> out;
  out.reserve(slices.size());
  for (auto const& [name, row, begin, end] : slices) {
    out.push_back({.name = name, .row = row, .begin_seconds = begin, .end_seconds = end});
  }
  write_chrome_trace(path, out);
}

/// Whether the tensor's bytes are those of the file, converted where it says so.
bool holds(std::shared_ptr<SourceFile const> const& file, Bytes offset, at::Tensor const& tensor,
           std::optional<Conversion> const& conversion) {
  if (!tensor.device().is_cpu() || !tensor.is_contiguous()) {
    return false;
  }
  auto const* const bytes = static_cast<std::byte const*>(tensor.const_data_ptr());
  constexpr Bytes kChunk = Bytes{4} << 20U;
  std::vector<std::byte> chunk(std::min<Bytes>(kChunk, tensor.nbytes()));
  FileExtent extent{.file = file, .file_offset = offset, .conversion = conversion};
  for (Bytes done = 0; done < tensor.nbytes(); done += chunk.size()) {
    extent.bytes = std::min<Bytes>(chunk.size(), tensor.nbytes() - done);
    extent.read_exact(chunk.data());
    extent.file_offset += extent.file_bytes();
    if (std::memcmp(chunk.data(), bytes + done, extent.bytes) != 0) {
      return false;
    }
  }
  return true;
}

/// Four requests of 64 MiB in flight, each into memory of its own that is used again.
void read_through(ShardSet const& shards) {
  py::gil_scoped_release const release;
  constexpr Bytes kPart = Bytes{64} << 20U;
  constexpr std::size_t kInFlight = 4;
  std::vector<std::shared_ptr<ReadPlan const>> plans;
  std::vector<ReadPiece> pieces;
  Bytes filled = 0;
  auto const close = [&] {
    plans.push_back(std::make_shared<ReadPlan const>(ReadPlan::make(pieces)));
    pieces.clear();
    filled = 0;
  };
  for (ShardTensor const& tensor : shards.tensors()) {
    for (Bytes done = 0; done < tensor.entry->bytes();) {
      Bytes const part = std::min(kPart - filled, tensor.entry->bytes() - done);
      pieces.push_back(
          {.file = tensor.file, .offset = tensor.entry->begin + done, .length = part, .destination = filled});
      filled += part;
      done += part;
      if (filled == kPart) {
        close();
      }
    }
  }
  if (!pieces.empty()) {
    close();
  }
  std::vector<AlignedBuffer> memory;
  memory.reserve(kInFlight);
  for (std::size_t i = 0; i < kInFlight; ++i) {
    memory.emplace_back(kPart);
  }
  Reader reader;
  std::deque<ReadTicket> tickets;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (tickets.size() == kInFlight) {
      tickets.front().wait();
      tickets.pop_front();
    }
    tickets.push_back(
        reader.start({.files = shards.files(), .plan = plans[i], .destination = memory[i % kInFlight].bytes()}));
  }
  for (ReadTicket const& ticket : tickets) {
    ticket.wait();
  }
}

}  // namespace

void init_engine(py::module_& m) {
  BlockingRegion::install(&leave_interpreter, &enter_interpreter);

  // Declared before what takes it, so that signatures show its Python name.
  py::class_<Engine, std::shared_ptr<Engine>> engine_class(m, "Engine");

  m.attr("NO_MODULE") = plan::kNoModule;
  m.attr("NO_PAGE") = TensorTable::kNoPage;

  py::class_<plan::ModuleNode>(m, "ModuleNode")
      .def(py::init([](std::string name, plan::ModuleIndex parent, bool list, bool called,
                       std::vector<plan::PageIndex> pages) {
             return plan::ModuleNode{std::move(name), parent, list, called, std::move(pages)};
           }),
           py::arg("name"), py::arg("parent"), py::arg("list"), py::arg("called"), py::arg("pages"));

  py::class_<plan::Grouping>(m, "Grouping")
      .def_property_readonly("group_names",
                             [](plan::Grouping const& g) {
                               std::vector<std::string> names;
                               names.reserve(g.groups.size());
                               for (plan::Group const& group : g.groups) {
                                 names.push_back(group.name);
                               }
                               return names;
                             })
      .def_property_readonly("group_pages",
                             [](plan::Grouping const& g) {
                               std::vector<std::vector<plan::PageIndex>> pages;
                               pages.reserve(g.groups.size());
                               for (plan::Group const& group : g.groups) {
                                 pages.push_back(group.pages);
                               }
                               return pages;
                             })
      .def_readonly("needs", &plan::Grouping::needs)
      .def_readonly("around", &plan::Grouping::around);

  py::class_<TensorTable>(m, "TensorTable")
      .def(py::init<>())
      .def("add", &TensorTable::add, py::arg("tensor"), py::arg("name"))
      .def("find_pages", &TensorTable::find_pages)
      .def("page_of", &TensorTable::page_of, py::arg("index"))
      .def("leave_home", &TensorTable::leave_home, py::arg("page"), "Its home has the bytes of the page already.")
      .def_property_readonly("page_bytes",
                             [](TensorTable const& table) {
                               std::vector<Bytes> bytes;
                               for (Engine::PageSpec const& page : table.pages()) {
                                 bytes.push_back(page.bytes);
                               }
                               return bytes;
                             })
      .def(
          "manage", [](TensorTable& table, Engine& engine, std::size_t index) { return table.manage(engine, index); },
          py::arg("engine"), py::arg("index"));
  m.def("make_groups", &make_groups, py::arg("modules"), py::arg("table"), py::arg("granularity"),
        py::arg("blocks_per_group"), py::arg("block_modules"), py::arg("budget"));

  m.def("dtype_name", &dtype_name, py::arg("dtype"), "What safetensors files call it; empty when they have none.");
  m.def("can_become", &can_become, py::arg("stored"), py::arg("wanted"),
        "Whether tensors of a safetensors dtype can be had as `wanted`, by a conversion if need be.");

  py::class_<ShardSet, std::shared_ptr<ShardSet>>(m, "ShardSet")
      .def_static(
          "open",
          [](std::string const& path, std::string const& variant) {
            return std::make_shared<ShardSet>(ShardSet::open(path, variant));
          },
          py::arg("path"), py::arg("variant") = "")
      .def_property_readonly("bytes", &ShardSet::bytes)
      .def("read_through", &read_through, "Reads every tensor's bytes and drops them: what the disk alone can do.")
      .def_property_readonly("tensors", [](ShardSet const& shards) {
        py::dict out;
        for (ShardTensor const& tensor : shards.tensors()) {
          TensorEntry const& entry = *tensor.entry;
          out[py::str(entry.name)] = py::make_tuple(entry.dtype, entry.shape, tensor.file, entry.begin, entry.bytes());
        }
        return out;
      });

  engine_class
      .def_static(
          "create",
          [](at::Device device, Bytes budget, TensorTable const& table, plan::Grouping grouping, std::uint32_t depth,
             std::optional<bool> pin, Bytes pinned_limit, bool use_streams, bool low_memory, bool verify) {
            EngineSettings options{.device = device,
                                   .budget = budget,
                                   .depth = depth,
                                   .pin = !pin ? Pinning::kAuto : (*pin ? Pinning::kOn : Pinning::kOff),
                                   .pinned_limit = pinned_limit,
                                   .use_streams = use_streams,
                                   .low_memory = low_memory,
                                   .verify = verify};
            return Engine::create(options, table.pages(), std::move(grouping));
          },
          py::arg("device"), py::arg("budget"), py::arg("table"), py::arg("grouping"), py::arg("depth") = 2,
          py::arg("pin") = py::none(), py::arg("pinned_limit") = ~Bytes{0}, py::arg("use_streams") = true,
          py::arg("low_memory") = false, py::arg("verify") = false)
      .def("give_memory_home", &Engine::give_memory_home, py::arg("group"))
      .def(
          "give_file_home",
          [](Engine& engine, plan::GroupIndex group, ShardSet const& shards,
             std::vector<std::tuple<plan::PageIndex, std::uint32_t, Bytes, std::string, at::ScalarType>> const& parts) {
            std::vector<std::pair<plan::PageIndex, FileExtent>> extents;
            extents.reserve(parts.size());
            for (auto const& [page, file, offset, stored, wanted] : parts) {
              extents.emplace_back(page, FileExtent{.file = shards.files()[file],
                                                    .file_offset = offset,
                                                    .bytes = engine.page(page).bytes(),
                                                    .conversion = Conversion::between(stored, wanted)});
            }
            engine.give_file_home(group, std::move(extents));
          },
          py::arg("group"), py::arg("shards"), py::arg("extents"))
      .def("bring_home", &Engine::bring_home, py::arg("group"))
      .def("group_bytes", &Engine::group_bytes, py::arg("group"))
      .def("start", &Engine::start)
      .def("begin", &Engine::begin, py::arg("module"))
      .def("end", &Engine::end, py::arg("module"))
      .def("hold", &Engine::hold, py::arg("groups"))
      .def("let_go", &Engine::let_go, py::arg("groups"))
      .def("flush", &Engine::flush)
      .def("evict_all", &Engine::evict_all)
      .def("resize", &Engine::resize, py::arg("budget"))
      .def("stop", &Engine::stop)
      .def("status", [](Engine& engine) { return to_dict(engine.status()); })
      .def("start_trace", &Engine::start_trace)
      .def("stop_trace",
           [](Engine& engine) {
             py::list out;
             for (TraceSlice const& slice : engine.stop_trace()) {
               out.append(py::make_tuple(slice.name, slice.row, slice.begin_seconds, slice.end_seconds));
             }
             return out;
           })
      .def("detach_to_device", &Engine::detach_to_device, py::arg("page"))
      .def(
          "page_alive", [](Engine& engine, plan::PageIndex page) { return engine.page(page).alive(); }, py::arg("page"))
      .def_property_readonly("page_count", &Engine::page_count)
      .def_property_readonly("device", [](Engine const& engine) { return engine.options().device; });

  m.def(
      "is_managed",
      [](at::Tensor const& t) { return t.has_storage() && Page::of(t.storage().unsafeGetStorageImpl()) != nullptr; },
      py::arg("tensor"));
#if defined(NORIA_DEBUG_ASSERTIONS)
  m.def(
      "omit_orderings", [](std::uint32_t orderings) { omitted_orderings() = orderings; }, py::arg("orderings"),
      "For tests of the order checker: a sum of noria::Ordering that the engine leaves out. Not in release builds.");
#endif
  m.def(
      "group_of", [](at::Tensor const& t) { return managed(t).first->page(managed(t).second).group(); },
      py::arg("tensor"));
  m.def(
      "detach_to_home",
      [](at::Tensor const& t) {
        if (Page* const page = Page::of(t.storage().unsafeGetStorageImpl())) {
          std::shared_ptr<Engine> const engine = page->engine()->shared_from_this();
          engine->detach_to_home(engine->index_of(*page));
        }
      },
      py::arg("tensor"), "The tensor, on the cpu, goes on with the bytes of its host home.");
  m.def(
      "map_tensor",
      [](ShardSet const& shards, std::uint32_t file, Bytes offset, at::Tensor const& like) {
        auto* const mapping = new FileMapping(shards.files()[file]->file(), offset, like.nbytes());
        c10::DataPtr data(mapping->data(), mapping, &unmap, c10::kCPU);
        auto storage = c10::make_intrusive<c10::StorageImpl>(
            c10::StorageImpl::use_byte_size_t{}, static_cast<int64_t>(like.nbytes()), std::move(data), nullptr, false);
        return tensor_over(std::move(storage), c10::kCPU, like, 0);
      },
      py::arg("shards"), py::arg("file"), py::arg("offset"), py::arg("like"),
      "A contiguous cpu tensor like `like` over a private mapping of the file.");
  m.def(
      "is_mapped",
      [](at::Tensor const& t) {
        return t.has_storage() && t.storage().unsafeGetStorageImpl()->data_ptr().get_deleter() == &unmap;
      },
      py::arg("tensor"));
  py::class_<FolderStore, std::shared_ptr<FolderStore>>(m, "FolderStore")
      .def_static(
          "open_or_write",
          [](std::string const& folder, Engine& engine, TensorTable const& table) {
            py::gil_scoped_release const release;
            return FolderStore::open_or_write(folder, engine, table);
          },
          py::arg("folder"), py::arg("engine"), py::arg("table"))
      .def("give_home", &FolderStore::give_home, py::arg("engine"), py::arg("group"));
  m.def("net_engines", &OperatorNet::engines);
  m.def("write_trace", &write_trace, py::arg("path"), py::arg("slices"),
        "Writes the slices of stop_trace() as Chrome-trace JSON, which Perfetto opens.");
  m.def("component_folder", &component_folder, py::arg("component"));
  m.def(
      "holds_bytes_of",
      [](ShardSet const& shards, std::uint32_t file, Bytes offset, at::Tensor const& tensor,
         std::string const& stored) {
        return holds(shards.files()[file], offset, tensor, Conversion::between(stored, tensor.scalar_type()));
      },
      "Whether the file holds the bytes of a contiguous cpu tensor, converted from dtype `stored`.", py::arg("shards"),
      py::arg("file"), py::arg("offset"), py::arg("tensor"), py::arg("stored"));

  py::class_<HostTensors, std::shared_ptr<HostTensors>>(m, "HostTensors")
      .def(py::init<>())
      .def("of", &HostTensors::of, py::arg("tensor"),
           "The managed tensor's bytes as a cpu tensor over its host home, current as of now.");
  m.def(
      "ring_bytes",
      [](TensorTable const& table, plan::Grouping const& grouping, std::uint32_t depth) {
        std::vector<plan::GroupUse> const costs = Engine::device_costs(table.pages(), grouping);
        std::vector<plan::GroupIndex> order(costs.size());
        std::iota(order.begin(), order.end(), plan::GroupIndex{0});
        return plan::ring_budget(costs, order, depth);
      },
      py::arg("table"), py::arg("grouping"), py::arg("depth"));
  m.def(
      "mark_dirty", [](at::Tensor const& t) { managed(t).first->page(managed(t).second).mark_dirty(); },
      py::arg("tensor"));
}

}  // namespace noria

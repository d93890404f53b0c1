// Module hooks as C++ callables: what runs before and after every forward costs a few microseconds, not fifty.
#include <noria/error.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "bindings/topics.h"
#include "core/log.h"
#include "engine/engine.h"
#include "engine/net.h"

namespace py = pybind11;

namespace noria {
namespace {

/// One registered tensor or submodule of the subtree that a hook stands for, as it was at set-up.
struct Watched {
  py::dict registry;  // a module's _parameters, _buffers or _modules
  py::object key;
  PyObject* object = nullptr;           // identity only, never dereferenced
  c10::StorageImpl* storage = nullptr;  // identity only; null for submodules and wrapper subclasses
  std::uint32_t version = 0;
};

/// Moves every tensor of a call that is not on `device` there. Containers keep their identity: a list that the forward
/// appends to is the caller's. A named tuple is rebuilt, since it cannot be changed.
class InputMover {
 public:
  explicit InputMover(c10::Device device) : device_(device) {}

  /// Returns `value`, or what stands in its place.
  py::object move(py::object value) {
    if (THPVariable_Check(value.ptr())) {
      at::Tensor const& tensor = THPVariable_Unpack(value.ptr());
      if (tensor.device() == device_ || tensor.is_meta()) {
        return value;
      }
      moved_ = true;
      py::gil_scoped_release const no_gil;
      at::Tensor moved = tensor.to(device_);
      py::gil_scoped_acquire const gil;
      return py::cast(std::move(moved));
    }
    if (PyList_CheckExact(value.ptr())) {
      auto list = py::reinterpret_borrow<py::list>(value);
      std::size_t place = 0;
      for (py::handle const item : list) {
        auto const before = py::reinterpret_borrow<py::object>(item);
        py::object const after = move(before);
        if (!after.is(before)) {
          list[place] = after;  // the same length: the iteration goes on
        }
        ++place;
      }
      return value;
    }
    if (PyDict_CheckExact(value.ptr())) {
      auto dict = py::reinterpret_borrow<py::dict>(value);
      std::vector<std::pair<py::object, py::object>> changed;
      for (auto const& [key, item] : dict) {
        auto const before = py::reinterpret_borrow<py::object>(item);
        py::object const after = move(before);
        if (!after.is(before)) {
          changed.emplace_back(py::reinterpret_borrow<py::object>(key), after);
        }
      }
      for (auto const& [key, item] : changed) {
        dict[key] = item;
      }
      return value;
    }
    if (PyTuple_Check(value.ptr()) != 0) {
      return move_tuple(py::reinterpret_borrow<py::tuple>(value));
    }
    return value;
  }

  [[nodiscard]] bool moved() const { return moved_; }

 private:
  py::object move_tuple(py::tuple const& tuple) {
    py::tuple out(tuple.size());
    bool changed = false;
    for (std::size_t i = 0; i < tuple.size(); ++i) {
      py::object const before = tuple[i];
      py::object const after = move(before);
      changed = changed || !after.is(before);
      out[i] = after;
    }
    if (!changed) {
      return tuple;
    }
    py::object const type = py::type::of(tuple);
    return py::hasattr(type, "_make") ? type.attr("_make")(out) : (PyTuple_CheckExact(tuple.ptr()) ? out : type(out));
  }

  c10::Device device_;
  bool moved_ = false;
};

/// Calls `visit` with each module whose call is among these frames, innermost first.
template <typename Visit>
void for_each_running(py::object frame, Visit&& visit) {
  while (!frame.is_none()) {
    if (py::cast<std::string>(frame.attr("f_code").attr("co_name")) == "_call_impl") {
      py::dict const locals = frame.attr("f_locals");
      if (locals.contains("self")) {
        visit(py::object(locals["self"]));
      }
    }
    frame = frame.attr("f_back");
  }
}

/// The innermost frame of a thread; None when it has none, or is gone. Its identity in Python is its pthread_t.
py::object frame_of(std::uint64_t thread) {
  py::dict const frames = py::module_::import("sys").attr("_current_frames")();
  py::int_ const key(thread);
  return frames.contains(key) ? py::object(frames[key]) : py::none();
}

/// True as well when the interpreter cannot be asked: then nothing is taken away.
bool runs_on(Engine const& engine, std::uint64_t thread) {
  try {
    py::gil_scoped_acquire const interpreter;
    bool runs = false;
    for_each_running(frame_of(thread), [&](py::handle module) {
      py::object const offload = py::getattr(module, "_noria_offload", py::none());
      py::object const owner = offload.is_none() ? py::none() : py::getattr(offload, "_engine", py::none());
      runs = runs || (!owner.is_none() && py::cast<Engine const*>(owner) == &engine);
    });
    return runs;
  } catch (std::exception const& error) {
    log(LogLevel::kDebug, std::string("could not look for running modules: ") + error.what());
    return true;
  }
}

/// True as well when the interpreter cannot be asked: then nobody waits for that thread.
bool awaits_backward(std::uint64_t thread) {
  try {
    py::gil_scoped_acquire const interpreter;
    py::object const frame = frame_of(thread);
    return frame.is_none() || py::cast<std::string>(frame.attr("f_code").attr("co_name")) == "_engine_run_backward";
  } catch (std::exception const& error) {
    log(LogLevel::kDebug, std::string("could not look for a backward: ") + error.what());
    return true;
  }
}

class ModuleHook {
 public:
  ModuleHook(std::shared_ptr<Engine> engine, plan::ModuleIndex module, py::object changed, py::set unmoved_kwargs)
      : engine_(std::move(engine)),
        module_(module),
        changed_(std::move(changed)),
        unmoved_kwargs_(std::move(unmoved_kwargs)) {}

  void watch(py::dict registry, py::object key) {
    Watched item{.registry = std::move(registry), .key = std::move(key)};
    PyObject* const object = PyDict_GetItem(item.registry.ptr(), item.key.ptr());
    item.object = object;
    item.storage = storage_of(object);
    item.version = version_of(object);
    watched_.push_back(std::move(item));
  }

  /// forward pre-hook with kwargs.
  py::object before(py::handle module, py::tuple const& args, py::dict const& kwargs) {
    std::vector<plan::ModuleIndex> open = engine_->uses_of_this_thread();
    if (inside_a_module(open) && engine_->is_root(module_)) {
      reclaim_interrupted(module, open);
      open = engine_->uses_of_this_thread();
    }
    if (inside_a_module(open)) {
      begin();
      return py::none();
    }
    if (differs() && py::cast<bool>(changed_())) {
      // The model has changed since it was offloaded (an adapter, a replaced layer): the owner has taken it up anew,
      // with other hooks than this one; what this call needs of it comes through the operator net.
      return py::none();
    }
    begin();
    return move_inputs(args, kwargs);
  }

  /// forward hook, always called.
  py::object after(py::handle /*module*/, py::handle /*args*/, py::handle /*output*/) {
    note_writes();
    engine_->end(module_);
    return py::none();
  }

 private:
  static c10::StorageImpl* storage_of(PyObject* object) {
    if (object == nullptr || !THPVariable_Check(object)) {
      return nullptr;
    }
    at::Tensor const& tensor = THPVariable_Unpack(object);
    return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
  }

  /// A tensor of torch.func, which stands in for the weight for one call and goes again.
  static bool stands_in(PyObject* object) {
    if (object == nullptr || !THPVariable_Check(object)) {
      return false;
    }
    constexpr c10::DispatchKeySet kWrappers(
        {c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched});
    at::Tensor const& tensor = THPVariable_Unpack(object);
    return tensor.defined() && tensor.key_set().has_any(kWrappers);
  }

  static std::uint32_t version_of(PyObject* object) {
    if (object == nullptr || !THPVariable_Check(object)) {
      return 0;
    }
    at::Tensor const& tensor = THPVariable_Unpack(object);
    return tensor.defined() && !tensor.is_inference() ? static_cast<std::uint32_t>(tensor._version()) : 0;
  }

  void begin() {
    try {
      engine_->begin(module_);
    } catch (...) {
      engine_->note_failed_begin(module_);  // the after-hook is called all the same
      throw;
    }
  }

  [[nodiscard]] bool differs() const {
    for (Watched const& item : watched_) {
      PyObject* const object = PyDict_GetItem(item.registry.ptr(), item.key.ptr());
      if (stands_in(object)) {
        continue;
      }
      if (object != item.object || (item.storage != nullptr && storage_of(object) != item.storage)) {
        return true;
      }
    }
    return false;
  }

  /// In-place writes by compiled code show in the version counter only.
  void note_writes() {
    for (Watched& item : watched_) {
      if (item.storage == nullptr) {
        continue;
      }
      PyObject* const object = PyDict_GetItem(item.registry.ptr(), item.key.ptr());
      std::uint32_t const version = version_of(object);
      if (object == item.object && version != item.version) {
        item.version = version;
        if (storage_of(object) == item.storage) {
          if (Page* const page = Page::of(item.storage); page != nullptr && page->is_open()) {
            page->mark_dirty();
          }
        }
      }
    }
  }

  /// A root that is entered while uses of this thread are open either calls itself, or an interrupt has passed the
  /// hooks by. It calls itself once for each frame of Module._call_impl that has it as its first argument.
  void reclaim_interrupted(py::handle module, std::vector<plan::ModuleIndex> const& open) {
    std::size_t running = 0;
    py::object const frame = py::module_::import("sys").attr("_getframe")();
    for_each_running(frame, [&](py::handle other) { running += other.is(module) ? 1 : 0; });
    // One frame is the call that this hook precedes.
    std::size_t const nested = running > 0 ? running - 1 : 0;
    std::size_t seen = 0;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i] == module_ && seen++ == nested) {
        engine_->reclaim(i);
        return;
      }
    }
    if (nested == 0) {  // left by another entry of the model; what resident() holds is not
      auto const first = std::ranges::find_if(open, [](plan::ModuleIndex i) { return i != plan::kNoModule; });
      engine_->reclaim(static_cast<std::size_t>(first - open.begin()));
    }
  }

  /// Uses without a module are those of resident() and of operators.
  static bool inside_a_module(std::vector<plan::ModuleIndex> const& open) {
    return std::ranges::any_of(open, [](plan::ModuleIndex module) { return module != plan::kNoModule; });
  }

  py::object move_inputs(py::tuple const& args, py::dict const& kwargs) {
    InputMover mover(engine_->options().device);
    py::object const moved_args = mover.move(args);
    for (auto const& [key, value] : py::dict(kwargs)) {
      if (!unmoved_kwargs_.contains(key)) {
        kwargs[key] = mover.move(py::reinterpret_borrow<py::object>(value));
      }
    }
    if (!mover.moved()) {
      return py::none();
    }
    return py::make_tuple(moved_args, kwargs);
  }

  std::shared_ptr<Engine> engine_;
  plan::ModuleIndex module_;
  py::object changed_;
  py::set unmoved_kwargs_;
  std::vector<Watched> watched_;
};

}  // namespace

void init_hooks(py::module_& m) {
  Engine::interpreter() = {.runs = &runs_on, .awaits_backward = &awaits_backward};
  py::class_<ModuleHook, std::shared_ptr<ModuleHook>>(m, "ModuleHook")
      .def(py::init<std::shared_ptr<Engine>, plan::ModuleIndex, py::object, py::set>(), py::arg("engine"),
           py::arg("module"), py::arg("changed"), py::arg("unmoved_kwargs"))
      .def("watch", &ModuleHook::watch, py::arg("registry"), py::arg("key"))
      .def("before", &ModuleHook::before)
      .def("after", &ModuleHook::after);
}

}  // namespace noria

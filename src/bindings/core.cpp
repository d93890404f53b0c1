#include <noria/bytes.h>
#include <noria/error.h>
#include <noria/version.h>
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>

#include "bindings/topics.h"
#include "core/log.h"

namespace py = pybind11;

namespace noria {
namespace {

// The classes live in noria.errors, since some have two bases; looked up once, on the first error.
py::object error_class(char const* name) { return py::module_::import("noria.errors").attr(name); }

void raise(char const* name, char const* message) { PyErr_SetString(error_class(name).ptr(), message); }

// By value: pybind11 prescribes the signature.
void translate(std::exception_ptr pointer) {  // NOLINT(performance-unnecessary-value-param)
  if (!pointer) {
    return;
  }
  try {
    std::rethrow_exception(pointer);
  } catch (BudgetError const& error) {
    py::object instance = error_class("BudgetError")(error.what());
    instance.attr("smallest_bytes") = error.smallest_bytes();
    PyErr_SetObject(error_class("BudgetError").ptr(), instance.ptr());
  } catch (StorageError const& error) {
    py::object instance = error_class("StorageError")(error.what());
    instance.attr("path") = error.path();
    instance.attr("errno") = error.error_number();
    PyErr_SetObject(error_class("StorageError").ptr(), instance.ptr());
  } catch (UnsupportedOperation const& error) {
    raise("UnsupportedOperation", error.what());
  } catch (EvictedWeightError const& error) {
    raise("EvictedWeightError", error.what());
  } catch (IntegrityError const& error) {
    raise("IntegrityError", error.what());
  } catch (PlanError const& error) {
    raise("PlanError", error.what());
  } catch (Error const& error) {
    raise("Error", error.what());
  }
}

}  // namespace

void init_core(py::module_& m) {
  py::register_exception_translator(&translate);
  m.attr("__version__") = version();
  m.attr("torch_minor") = NORIA_TORCH_MINOR;
  m.attr("evicted_prefix") = std::string(kEvictedPrefix);
  m.def(
      "parse_byte_amount",
      [](std::string const& text, Bytes free_bytes) { return parse_byte_amount(text).resolve(free_bytes); },
      py::arg("text"), py::arg("free_bytes"), "Bytes that `text` means; a percentage is taken of `free_bytes`.");
  m.def("is_share", [](std::string const& text) { return parse_byte_amount(text).share > 0.0; }, py::arg("text"));
  m.def("format_bytes", &format_bytes, py::arg("bytes"));
  m.def(
      "set_log_sink",
      [](py::function sink) {
        // Held for the process: the sink is noria's own and a static holder must not be destroyed after the
        // interpreter.
        auto* const held = new py::function(std::move(sink));
        set_log_sink([held](LogLevel level, std::string_view text) {
          if (Py_IsInitialized() == 0) {
            return;
          }
          py::gil_scoped_acquire const gil;
          (*held)(static_cast<int>(level), py::str(text.data(), text.size()));
        });
      },
      py::arg("sink"));
}

}  // namespace noria

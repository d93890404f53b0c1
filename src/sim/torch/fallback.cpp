#include "sim/torch/fallback.h"

#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <optional>

#include "sim/torch/operator_call.h"
#include "sim/torch/registration.h"

namespace noria::simtorch {
namespace {

void fallback(c10::OperatorHandle const& op, torch::jit::Stack* stack) { run_on_host(op, stack, &pytorch_kernel); }

// A composite kernel outranks a fallback. Where the CPU has a kernel of its own beside it, that one is the device's
// too: the composite one takes the operator apart into many kernels, and its results can differ in the last bit.
bool has_cpu_kernel_beside_composite(c10::OperatorHandle const& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd));
}

}  // namespace

void pytorch_kernel(c10::OperatorHandle const& op, c10::DispatchKey key, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(key), stack);
}

void run_on_host(c10::OperatorHandle const& op, torch::jit::Stack* stack, HostKernel kernel) {
  OperatorCall call(op, stack);
  call.check_devices();
  if (call.must_stay_dry()) {
    call.plan(kernel);
  } else {
    call.compute(kernel);
  }
}

void register_fallback() {
  // Leaked, as all registrations are.
  static auto& any = *new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  any.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  static auto& aten =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  // Composite too, and would look for a vendor's kernel.
  for (char const* name : {"convolution", "convolution_backward"}) {
    aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
  auto& dispatcher = c10::Dispatcher::singleton();
  for (c10::OperatorName const& name : dispatcher.getAllOpNames()) {
    auto const op = dispatcher.findOp(name);
    if (name.name.starts_with("aten::") && op.has_value() && has_cpu_kernel_beside_composite(*op) &&
        !op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      aten.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
    }
  }
}

}  // namespace noria::simtorch

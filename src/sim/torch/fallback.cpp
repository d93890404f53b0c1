#include "sim/torch/fallback.h"

#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <optional>

#include "sim/torch/operator_call.h"
#include "sim/torch/registration.h"

namespace noria::simtorch {
namespace {

void fallback(c10::OperatorHandle const& op, torch::jit::Stack* stack) { run_on_host(op, stack, &pytorch_kernel); }

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
  // These have composite kernels, which outrank a fallback: a convolution that looks for a vendor's, and norms taken
  // apart into many kernels where every accelerator has one.
  static auto& aten =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (char const* name : {"convolution", "convolution_backward", "native_layer_norm", "native_group_norm",
                           "mish_backward", "native_channel_shuffle"}) {
    aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

}  // namespace noria::simtorch

/// Operators of the simulated device: the CPU's kernel over the same bytes, as one kernel of the current stream.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>

namespace noria::simtorch {

/// What computes an operator once its operands are CPU (or Meta) tensors: takes its arguments from the stack and leaves
/// its results. `key` is CPU or Meta.
using HostKernel = void (*)(c10::OperatorHandle const& op, c10::DispatchKey key, torch::jit::Stack* stack);

/// Runs `op` on the arguments on the stack with `kernel` in place of a device kernel:
///  - operands on different devices raise, as on CUDA;
///  - the stream's earlier work that the operands depend on has landed, and unordered accesses are reported;
///  - results are simulated tensors, made of the CPU's memory without a copy and accounted on the device;
///  - the kernel is charged to the virtual clock.
void run_on_host(c10::OperatorHandle const& op, torch::jit::Stack* stack, HostKernel kernel);

/// The kernel that PyTorch itself has for the CPU (or Meta).
void pytorch_kernel(c10::OperatorHandle const& op, c10::DispatchKey key, torch::jit::Stack* stack);

/// run_on_host with a fixed kernel, as a boxed function for registration.
template <HostKernel kKernel>
void boxed_operator(c10::OperatorHandle const& op, torch::jit::Stack* stack) {
  run_on_host(op, stack, kKernel);
}

/// The thread's state while a CPU kernel runs in place of a device kernel: no autograd, no version counters, no
/// operator callbacks, since the device's user sees one kernel and not what it is made of.
class HostKernelScope {
 private:
  c10::InferenceMode inference_;
  at::DisableRecordFunctionGuard quiet_;
};

}  // namespace noria::simtorch

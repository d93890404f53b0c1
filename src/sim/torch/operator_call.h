/// One call of an operator of the simulated device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <vector>

#include "sim/torch/backend.h"
#include "sim/torch/fallback.h"
#include "sim/torch/operator_info.h"
#include "sim/torch/tensor_alias.h"

namespace noria::simtorch {

/// Takes the arguments off the stack, and puts the results on it in compute() or plan(). Lives for the call only.
class OperatorCall {
 public:
  OperatorCall(c10::OperatorHandle const& op, torch::jit::Stack* stack);

  /// Raises for operands on different devices, in CUDA's words.
  void check_devices() const;

  /// True in a dry run when an operand that is read has no known values, or a result has no memory.
  [[nodiscard]] bool must_stay_dry() const;

  /// Runs `kernel` on CPU aliases and charges it.
  void compute(HostKernel kernel);
  /// Runs `kernel` on Meta aliases for the shapes of the results, and charges it.
  void plan(HostKernel kernel);

 private:
  struct Operand {
    at::Tensor const* tensor;  ///< on the simulated device; owned by arguments_
    at::Tensor alias;
    bool read;
    bool written;
  };
  enum class Target { kCpu, kMeta };

  void gather();
  void note_tensor(at::Tensor const& tensor, ArgumentInfo const& argument);
  void substitute(Target target);
  at::Tensor substitute(at::Tensor const& tensor, Target target);
  c10::IValue substitute(c10::IValue const& value, ArgumentKind kind, Target target);
  c10::IValue host_generator(c10::IValue const& value) const;

  sim::KernelScope begin() const;
  void end(sim::KernelScope const& scope);
  void settle_written(Target target);
  void settle(Operand const& operand, Target target);
  void wrap_results(Target target);
  c10::IValue wrap(c10::IValue const& value, std::size_t index, Target target);
  at::Tensor wrap_fresh(at::Tensor const& result, Target target);

  c10::OperatorHandle const& op_;
  OperatorInfo const& info_;
  torch::jit::Stack& stack_;
  c10::SmallVector<c10::IValue, 12> arguments_;
  c10::SmallVector<Operand, 8> operands_;
  std::size_t next_operand_ = 0;  ///< in substitute(): operands come in the order of gather()
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 2> adopted_;
  c10::SmallVector<sim::Range, 2> fresh_;
  sim::StreamRef stream_;
};

}  // namespace noria::simtorch

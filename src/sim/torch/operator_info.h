/// What the fallback has to know about an operator, read once from its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>
#include <vector>

namespace noria::simtorch {

/// How an argument is treated when an operator is run on the CPU over the same bytes.
enum class ArgumentKind : std::uint8_t { kOther, kTensor, kTensorList, kOptionalTensorList, kDevice, kGenerator };

struct ArgumentInfo {
  ArgumentKind kind = ArgumentKind::kOther;
  bool written = false;      ///< the schema says that the operator mutates it
  bool overwritten = false;  ///< written without being read: an `out=` operand, `self` of `fill_`
};

/// Which floating-point count applies; see kernel_cost.h.
enum class Work : std::uint8_t {
  kBytesOnly,
  kMatrixProduct,
  kConvolution,
  kConvolutionBackward,
  kAttention,
  kAttentionBackward
};

struct OperatorInfo {
  static constexpr int kNotAnAlias = -1;

  std::string name;                     ///< "aten::add.out"
  std::vector<ArgumentInfo> arguments;  ///< as in the schema
  std::vector<int> return_alias;        ///< per return: the argument it is, or kNotAnAlias
  std::vector<bool> return_is_view;     ///< per return: a view of that argument, not the argument itself
  Work work = Work::kBytesOnly;
  bool takes_cpu_operands = false;  ///< index operands may be on the CPU, as on CUDA
  bool needs_values = false;        ///< the host waits for its result: a shape or a number that depends on data
  bool hidden_random = false;       ///< draws from the default generator without taking one
};

/// The facts of `op`; computed at the first call, valid for the life of the process.
OperatorInfo const& operator_info(c10::OperatorHandle const& op);

}  // namespace noria::simtorch

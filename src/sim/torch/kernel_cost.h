/// Floating-point operations and bytes of an operator, from its operands: the two numbers that price a kernel.
#pragma once

#include <ATen/core/ivalue.h>

#include <span>

#include "sim/torch/operator_info.h"

namespace noria::simtorch {

struct Flops {
  double count = 0.0;
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< of the factors: decides which peak applies
};

/// Operations of one call. `arguments` are as passed, `results` as returned (empty while unknown).
/// Matrix products and convolutions count a multiply and an add as two; attention counts its two products, its
/// backward five (FlashAttention-2, arXiv 2307.08691, section 4.1), causal masks half of either. Everything else counts
/// nothing: it is bound by its bytes.
Flops count_flops(OperatorInfo const& info, std::span<c10::IValue const> arguments,
                  std::span<c10::IValue const> results);

}  // namespace noria::simtorch

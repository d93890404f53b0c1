#include "sim/torch/kernel_cost.h"

#include <ATen/core/Tensor.h>

namespace noria::simtorch {
namespace {

at::Tensor const* tensor_at(std::span<c10::IValue const> values, std::size_t index) {
  if (index >= values.size() || !values[index].isTensor()) {
    return nullptr;
  }
  at::Tensor const& tensor = values[index].toTensor();
  return tensor.defined() ? &tensor : nullptr;
}

double as_count(std::int64_t n) { return static_cast<double>(n); }

// "addmm" and its kind take what is added first.
Flops matrix_product(OperatorInfo const& info, std::span<c10::IValue const> arguments) {
  bool const adds = info.name.starts_with("aten::add") || info.name.starts_with("aten::_add") ||
                    info.name.starts_with("aten::baddbmm");
  auto const* const left = tensor_at(arguments, adds ? 1 : 0);
  auto const* const right = tensor_at(arguments, adds ? 2 : 1);
  if (left == nullptr || right == nullptr || left->numel() == 0) {
    return {};
  }
  // The weights of these are (out, in).
  bool const transposed = info.name.starts_with("aten::linear") || info.name.starts_with("aten::_weight_int8pack_mm");
  std::int64_t const columns = right->dim() < 2 ? 1 : right->size(transposed ? 0 : right->dim() - 1);
  return {2.0 * as_count(left->numel()) * as_count(columns), left->scalar_type()};
}

double convolution_count(at::Tensor const& input, at::Tensor const& weight, at::Tensor const& output, bool transposed) {
  // Each output element (each input element when transposed) meets one filter of the other side's channels.
  at::Tensor const& side = transposed ? input : output;
  return weight.size(0) == 0 ? 0.0 : 2.0 * as_count(side.numel()) * as_count(weight.numel() / weight.size(0));
}

Flops convolution(std::span<c10::IValue const> arguments, std::span<c10::IValue const> results) {
  auto const* const input = tensor_at(arguments, 0);
  auto const* const weight = tensor_at(arguments, 1);
  auto const* const output = tensor_at(results, 0);
  if (input == nullptr || weight == nullptr || output == nullptr) {
    return {};
  }
  return {convolution_count(*input, *weight, *output, arguments[6].toBool()), input->scalar_type()};
}

Flops convolution_backward(std::span<c10::IValue const> arguments) {
  auto const* const grad = tensor_at(arguments, 0);
  auto const* const input = tensor_at(arguments, 1);
  auto const* const weight = tensor_at(arguments, 2);
  if (grad == nullptr || input == nullptr || weight == nullptr) {
    return {};
  }
  // (grad, input, weight, bias_sizes, stride, padding, dilation, transposed, ...); the overrideable form has no sizes.
  bool const has_sizes = arguments.size() > 10;
  auto const mask = arguments.back().toBoolList();
  double const products = (mask.get(0) ? 1.0 : 0.0) + (mask.get(1) ? 1.0 : 0.0);
  return {products * convolution_count(*input, *weight, *grad, arguments[has_sizes ? 7 : 6].toBool()),
          grad->scalar_type()};
}

// query (..., L, E), key (..., S, E), value (..., S, Ev).
Flops attention(std::span<c10::IValue const> arguments, std::size_t first, double products, bool causal) {
  auto const* const query = tensor_at(arguments, first);
  auto const* const key = tensor_at(arguments, first + 1);
  auto const* const value = tensor_at(arguments, first + 2);
  if (query == nullptr || key == nullptr || value == nullptr || query->numel() == 0) {
    return {};
  }
  double const rows = as_count(query->numel() / query->size(-1));
  double const mean_width = 0.5 * as_count(query->size(-1) + value->size(-1));
  double const count = 2.0 * products * rows * as_count(key->size(-2)) * mean_width;
  return {causal ? 0.5 * count : count, query->scalar_type()};
}

// The first bool of every attention schema is `is_causal`.
bool causal_flag(std::span<c10::IValue const> arguments) {
  for (auto const& value : arguments) {
    if (value.isBool()) {
      return value.toBool();
    }
  }
  return false;
}

}  // namespace

Flops count_flops(OperatorInfo const& info, std::span<c10::IValue const> arguments,
                  std::span<c10::IValue const> results) {
  switch (info.work) {
    case Work::kBytesOnly:
      return {};
    case Work::kMatrixProduct:
      return matrix_product(info, arguments);
    case Work::kConvolution:
      return convolution(arguments, results);
    case Work::kConvolutionBackward:
      return convolution_backward(arguments);
    case Work::kAttention:
      return attention(arguments, 0, 2.0, causal_flag(arguments));
    case Work::kAttentionBackward:
      return attention(arguments, 1, 5.0, causal_flag(arguments));
  }
  return {};
}

}  // namespace noria::simtorch

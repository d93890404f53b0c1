// scaled_dot_product_attention at a fused kernel's memory: no matrix of scores on the device.
//
// Where the CPU has a flash kernel it is used, over the same bytes. For the rest (three dimensions, a mask that wants a
// gradient) the scores are made in host scratch that the device does not pay for. Dropout takes the
// unfused path, as it does on the CPU.
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>

#include <cmath>
#include <limits>

#include "sim/torch/fallback.h"
#include "sim/torch/registration.h"
#include "sim/torch/tensor_alias.h"

namespace noria::simtorch {
namespace {

std::int64_t choose(at::Tensor const& query, at::Tensor const& key, at::Tensor const& value,
                    std::optional<at::Tensor> const& mask, double dropout, bool causal, std::optional<double> scale,
                    bool grouped) {
  auto const math = static_cast<std::int64_t>(at::SDPBackend::math);
  auto const& context = at::globalContext();
  bool const fused_allowed = context.userEnabledFlashSDP() || context.userEnabledMemEfficientSDP();
  if (dropout > 0.0 || query.is_nested() || key.is_nested() || value.is_nested() || !fused_allowed ||
      !at::isFloatingType(query.scalar_type())) {
    return math;
  }
  bool const mask_wants_grad = mask.has_value() && mask->defined() && mask->requires_grad();
  if (!mask_wants_grad) {
    std::optional<at::Tensor> const mask_shape =
        mask.has_value() && mask->defined() ? std::optional(shape_alias(*mask)) : std::nullopt;
    std::int64_t const host = at::_fused_sdp_choice(shape_alias(query), shape_alias(key), shape_alias(value),
                                                    mask_shape, dropout, causal, scale, grouped);
    if (host == static_cast<std::int64_t>(at::SDPBackend::flash_attention)) {
      return host;
    }
  }
  return context.userEnabledOverrideableSDP() ? static_cast<std::int64_t>(at::SDPBackend::overrideable) : math;
}

bool grouped_heads(at::Tensor const& query, at::Tensor const& key) {
  return query.dim() >= 3 && key.dim() >= 3 && query.size(-3) != key.size(-3);
}

// Operands of one attention, with heads repeated so that query and key have the same number.
struct Heads {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  std::int64_t groups = 1;  ///< query heads per key head
};

Heads expand_heads(at::Tensor const& query, at::Tensor const& key, at::Tensor const& value) {
  if (!grouped_heads(query, key)) {
    return {query, key, value, 1};
  }
  std::int64_t const groups = query.size(-3) / key.size(-3);
  return {query, key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3), groups};
}

// Sums over the query heads that shared a key head.
at::Tensor fold_heads(at::Tensor const& grad, std::int64_t groups) {
  if (groups == 1) {
    return grad;
  }
  auto sizes = grad.sizes().vec();
  std::size_t const heads = sizes.size() - 3;
  sizes[heads] /= groups;
  sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(heads) + 1, groups);
  return grad.reshape(sizes).sum(static_cast<std::int64_t>(heads) + 1);
}

double scale_of(at::Tensor const& query, std::optional<double> scale) {
  return scale.has_value() ? *scale : 1.0 / std::sqrt(static_cast<double>(query.size(-1)));
}

at::Tensor probabilities(Heads const& heads, at::Tensor const& bias, bool causal, double scale) {
  at::Tensor scores = at::matmul(heads.query, heads.key.transpose(-2, -1)).mul_(scale);
  if (causal) {
    auto const seen = at::ones({scores.size(-2), scores.size(-1)}, scores.options().dtype(at::kBool)).tril_();
    scores.masked_fill_(seen.logical_not_(), -std::numeric_limits<double>::infinity());
  }
  if (bias.defined()) {
    scores.add_(bias);
  }
  return scores.softmax(-1);
}

// Sums `grad` over the dimensions along which an operand of shape `sizes` was broadcast.
at::Tensor sum_to_shape(at::Tensor const& grad, c10::IntArrayRef sizes) { return at::sum_to(grad, sizes); }

at::Tensor optional_tensor(c10::IValue const& value) { return value.isTensor() ? value.toTensor() : at::Tensor(); }

// (query, key, value, attn_bias, dropout_p, is_causal, return_debug_mask, scale) -> nine results, of which the last six
// serve random dropout and packed sequences, which this kernel does not have.
void forward_kernel(c10::OperatorHandle const& /*op*/, c10::DispatchKey /*key*/, torch::jit::Stack* stack) {
  auto const arguments = torch::jit::pop(*stack, 8);
  at::Tensor const& query = arguments[0].toTensor();
  at::Tensor const& key = arguments[1].toTensor();
  at::Tensor const& value = arguments[2].toTensor();
  auto const bias = arguments[3].toOptional<at::Tensor>();
  TORCH_CHECK(arguments[4].toDouble() == 0.0, "the simulator's fused attention has no dropout");
  at::Tensor output = std::get<0>(
      at::_scaled_dot_product_attention_math(query, key, value, bias, 0.0, arguments[5].toBool(), std::nullopt,
                                             arguments[7].toOptional<double>(), grouped_heads(query, key)));
  auto rows = query.sizes().vec();
  rows.pop_back();
  at::Tensor const none = at::empty({0}, query.options().dtype(at::kLong));
  stack->insert(stack->end(), {output, at::zeros(rows, query.options().dtype(at::kFloat)), none, none.clone(),
                               query.size(-2), key.size(-2), none.clone(), none.clone(), none.clone()});
}

// FlashAttention-2 (arXiv 2307.08691, section 2.3): dS = P * (dP - rowsum(dO * O)). Half types are computed in float32.
void backward_kernel(c10::OperatorHandle const& /*op*/, c10::DispatchKey /*key*/, torch::jit::Stack* stack) {
  auto const arguments = torch::jit::pop(*stack, 17);
  at::Tensor const& query = arguments[1].toTensor();
  at::Tensor const bias = optional_tensor(arguments[4]);
  auto const mask = arguments[5].toBoolList();
  bool const causal = arguments[13].toBool();
  auto const wide = [&](at::Tensor const& tensor) {
    return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
  };
  double const scale = scale_of(query, arguments[16].toOptional<double>());
  Heads const heads = expand_heads(wide(query), wide(arguments[2].toTensor()), wide(arguments[3].toTensor()));
  at::Tensor const grad_out = wide(arguments[0].toTensor());
  at::Tensor const weights = probabilities(heads, bias.defined() ? wide(bias) : bias, causal, scale);
  at::Tensor const row_dot = (grad_out * wide(arguments[6].toTensor())).sum(-1, true);
  at::Tensor const grad_scores = weights * (at::matmul(grad_out, heads.value.transpose(-2, -1)) - row_dot);
  auto const as_operand = [&](at::Tensor const& grad, std::size_t index) {
    at::Tensor const& operand = arguments[index].toTensor();
    return sum_to_shape(grad, operand.sizes()).to(operand.scalar_type());
  };
  auto const fold = [&](at::Tensor const& grad) { return fold_heads(grad, heads.groups); };
  at::Tensor const grad_query = as_operand(at::matmul(grad_scores, heads.key) * scale, 1);
  at::Tensor const grad_key = as_operand(fold(at::matmul(grad_scores.transpose(-2, -1), heads.query) * scale), 2);
  at::Tensor const grad_value = as_operand(fold(at::matmul(weights.transpose(-2, -1), grad_out)), 3);
  at::Tensor const grad_bias = bias.defined() && mask.get(3) ? as_operand(grad_scores, 4) : at::Tensor();
  stack->insert(stack->end(), {grad_query, grad_key, grad_value, grad_bias});
}

}  // namespace

void register_attention(torch::Library& library) {
  library.impl("_scaled_dot_product_fused_attention_overrideable",
               torch::CppFunction::makeFromBoxedFunction<&boxed_operator<&forward_kernel>>());
  library.impl("_scaled_dot_product_fused_attention_overrideable_backward",
               torch::CppFunction::makeFromBoxedFunction<&boxed_operator<&backward_kernel>>());
  static at::native::RegisterPRIVATEUSE1Dispatch<struct at::native::_fused_sdp_choice_stub_DECLARE_DISPATCH_type> const
      choice(at::native::_fused_sdp_choice_stub, &choose);
}

}  // namespace noria::simtorch

// The fused cells of LSTM and GRU. PyTorch takes them on every accelerator, and has them for its own only: one kernel
// that adds the two products and their biases, and applies the gates. Half types are computed in float32.
#include <ATen/ops/cat.h>

#include "sim/torch/fallback.h"
#include "sim/torch/registration.h"

namespace noria::simtorch {
namespace {

at::Tensor wide(at::Tensor const& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

// A product with its bias; `bias` is None in layers without.
at::Tensor biased(c10::IValue const& product, c10::IValue const& bias) {
  at::Tensor const gates = wide(product.toTensor());
  return bias.isTensor() && bias.toTensor().defined() ? gates + wide(bias.toTensor()) : gates;
}

at::Tensor optional_grad(c10::IValue const& value) {
  return value.isTensor() && value.toTensor().defined() ? wide(value.toTensor()) : at::Tensor();
}

at::Tensor sigmoid_slope(at::Tensor const& activated) { return (1 - activated) * activated; }

at::Tensor tanh_slope(at::Tensor const& activated) { return 1 - activated * activated; }

// (input_gates, hidden_gates, cx, input_bias, hidden_bias) -> (hy, cy, workspace): the workspace is the activated
// gates.
void lstm_cell(c10::OperatorHandle const& /*op*/, c10::DispatchKey /*key*/, torch::jit::Stack* stack) {
  auto const arguments = torch::jit::pop(*stack, 5);
  at::Tensor const& cx = arguments[2].toTensor();
  at::Tensor const gates = biased(arguments[0], arguments[3]) + biased(arguments[1], arguments[4]);
  auto const parts = gates.chunk(4, 1);
  parts[0].sigmoid_();
  parts[1].sigmoid_();
  parts[2].tanh_();
  parts[3].sigmoid_();
  at::Tensor const cy = (parts[1] * wide(cx)).add_(parts[0] * parts[2]);
  at::Tensor const hy = parts[3] * cy.tanh();
  auto const type = cx.scalar_type();
  stack->insert(stack->end(), {hy.to(type), cy.to(type), gates.to(type)});
}

// (grad_hy, grad_cy, cx, cy, workspace, has_bias) -> (grad_gates, grad_cx, grad_bias)
void lstm_cell_backward(c10::OperatorHandle const& /*op*/, c10::DispatchKey /*key*/, torch::jit::Stack* stack) {
  auto const arguments = torch::jit::pop(*stack, 6);
  at::Tensor const grad_hy = optional_grad(arguments[0]);
  at::Tensor const grad_cy = optional_grad(arguments[1]);
  if (!grad_hy.defined() && !grad_cy.defined()) {
    stack->insert(stack->end(), {at::Tensor(), at::Tensor(), at::Tensor()});
    return;
  }
  at::Tensor const& cx = arguments[2].toTensor();
  auto const parts = wide(arguments[4].toTensor()).chunk(4, 1);
  at::Tensor const cell = wide(arguments[3].toTensor()).tanh();
  at::Tensor const grad_out = grad_hy.defined() ? grad_hy : at::zeros_like(cell);
  at::Tensor grad_cell = grad_out * parts[3] * tanh_slope(cell);
  if (grad_cy.defined()) {
    grad_cell = grad_cell + grad_cy;
  }
  at::Tensor const grad_gates =
      at::cat({grad_cell * parts[2] * sigmoid_slope(parts[0]), grad_cell * wide(cx) * sigmoid_slope(parts[1]),
               grad_cell * parts[0] * tanh_slope(parts[2]), grad_out * cell * sigmoid_slope(parts[3])},
              1);
  auto const type = cx.scalar_type();
  stack->insert(stack->end(), {grad_gates.to(type), (grad_cell * parts[1]).to(type),
                               arguments[5].toBool() ? grad_gates.sum(0).to(type) : at::Tensor()});
}

// (input_gates, hidden_gates, hx, input_bias, hidden_bias) -> (hy, workspace): the workspace is the activated gates
// reset, input and new, the old state, and the hidden product of the new gate.
void gru_cell(c10::OperatorHandle const& /*op*/, c10::DispatchKey /*key*/, torch::jit::Stack* stack) {
  auto const arguments = torch::jit::pop(*stack, 5);
  at::Tensor const& hx = arguments[2].toTensor();
  at::Tensor const state = wide(hx);
  auto const from_input = biased(arguments[0], arguments[3]).chunk(3, 1);
  auto const from_hidden = biased(arguments[1], arguments[4]).chunk(3, 1);
  at::Tensor const reset = (from_hidden[0] + from_input[0]).sigmoid_();
  at::Tensor const input = (from_hidden[1] + from_input[1]).sigmoid_();
  at::Tensor const fresh = (from_hidden[2] * reset).add_(from_input[2]).tanh_();
  at::Tensor const hy = (state - fresh).mul_(input).add_(fresh);
  auto const type = hx.scalar_type();
  stack->insert(stack->end(), {hy.to(type), at::cat({reset, input, fresh, state, from_hidden[2]}, 1).to(type)});
}

// (grad_hy, workspace, has_bias) -> (grad_input_gates, grad_hidden_gates, grad_hx, grad_input_bias, grad_hidden_bias)
void gru_cell_backward(c10::OperatorHandle const& /*op*/, c10::DispatchKey /*key*/, torch::jit::Stack* stack) {
  auto const arguments = torch::jit::pop(*stack, 3);
  auto const type = arguments[0].toTensor().scalar_type();
  at::Tensor const grad = wide(arguments[0].toTensor());
  auto const saved = wide(arguments[1].toTensor()).chunk(5, 1);
  at::Tensor const& reset = saved[0];
  at::Tensor const& input = saved[1];
  at::Tensor const& fresh = saved[2];
  at::Tensor const grad_fresh = grad * (1 - input) * tanh_slope(fresh);
  at::Tensor const grad_input = grad * (saved[3] - fresh) * sigmoid_slope(input);
  at::Tensor const grad_reset = grad_fresh * saved[4] * sigmoid_slope(reset);
  at::Tensor const grad_from_input = at::cat({grad_reset, grad_input, grad_fresh}, 1);
  at::Tensor const grad_from_hidden = at::cat({grad_reset, grad_input, grad_fresh * reset}, 1);
  auto const bias = [&](at::Tensor const& gates) {
    return arguments[2].toBool() ? gates.sum(0).to(type) : at::Tensor();
  };
  stack->insert(stack->end(), {grad_from_input.to(type), grad_from_hidden.to(type), (grad * input).to(type),
                               bias(grad_from_input), bias(grad_from_hidden)});
}

}  // namespace

void register_recurrent(torch::Library& library) {
  library.impl("_thnn_fused_lstm_cell", torch::CppFunction::makeFromBoxedFunction<&boxed_operator<&lstm_cell>>());
  library.impl("_thnn_fused_lstm_cell_backward_impl",
               torch::CppFunction::makeFromBoxedFunction<&boxed_operator<&lstm_cell_backward>>());
  library.impl("_thnn_fused_gru_cell", torch::CppFunction::makeFromBoxedFunction<&boxed_operator<&gru_cell>>());
  library.impl("_thnn_fused_gru_cell_backward",
               torch::CppFunction::makeFromBoxedFunction<&boxed_operator<&gru_cell_backward>>());
}

}  // namespace noria::simtorch

#include "sim/torch/operator_info.h"

#include <ATen/core/function_schema.h>

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace noria::simtorch {
namespace {

// `self` of these is written whole and not read.
bool overwrites_self(std::string_view base) {
  static std::unordered_set<std::string_view> const names{"fill_",       "zero_",   "copy_",      "normal_",
                                                          "uniform_",    "random_", "bernoulli_", "exponential_",
                                                          "log_normal_", "cauchy_", "geometric_"};
  return names.contains(base);
}

// CUDA accepts index tensors that live on the CPU for these, and moves them.
bool takes_cpu_operands(std::string_view base) {
  static std::unordered_set<std::string_view> const names{
      "index",         "index_put",         "index_put_",           "_index_put_impl_",
      "_unsafe_index", "_unsafe_index_put", "_pack_padded_sequence"};
  return names.contains(base);
}

Work work_of(std::string_view base) {
  static std::unordered_map<std::string_view, Work> const table{
      {"mm", Work::kMatrixProduct},
      {"addmm", Work::kMatrixProduct},
      {"addmm_", Work::kMatrixProduct},
      {"_addmm_activation", Work::kMatrixProduct},
      {"bmm", Work::kMatrixProduct},
      {"baddbmm", Work::kMatrixProduct},
      {"baddbmm_", Work::kMatrixProduct},
      {"addbmm", Work::kMatrixProduct},
      {"addbmm_", Work::kMatrixProduct},
      {"mv", Work::kMatrixProduct},
      {"addmv", Work::kMatrixProduct},
      {"addmv_", Work::kMatrixProduct},
      {"dot", Work::kMatrixProduct},
      {"vdot", Work::kMatrixProduct},
      {"linear", Work::kMatrixProduct},
      {"_int_mm", Work::kMatrixProduct},
      {"_scaled_mm", Work::kMatrixProduct},
      {"_weight_int8pack_mm", Work::kMatrixProduct},
      {"convolution", Work::kConvolution},
      {"convolution_overrideable", Work::kConvolution},
      {"convolution_backward", Work::kConvolutionBackward},
      {"convolution_backward_overrideable", Work::kConvolutionBackward},
      {"_scaled_dot_product_flash_attention_for_cpu", Work::kAttention},
      {"_scaled_dot_product_fused_attention_overrideable", Work::kAttention},
      {"_scaled_dot_product_flash_attention_for_cpu_backward", Work::kAttentionBackward},
      {"_scaled_dot_product_fused_attention_overrideable_backward", Work::kAttentionBackward},
  };
  auto const found = table.find(base);
  return found == table.end() ? Work::kBytesOnly : found->second;
}

ArgumentKind kind_of(c10::Argument const& argument) {
  c10::TypePtr type = argument.type();
  if (auto const inner = type->cast<c10::OptionalType>()) {
    type = inner->getElementType();
  }
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentKind::kTensor;
    case c10::TypeKind::DeviceObjType:
      return ArgumentKind::kDevice;
    case c10::TypeKind::GeneratorType:
      return ArgumentKind::kGenerator;
    case c10::TypeKind::ListType: {
      c10::TypePtr const element = type->castRaw<c10::ListType>()->getElementType();
      if (element->kind() == c10::TypeKind::TensorType) {
        return ArgumentKind::kTensorList;
      }
      if (auto const maybe = element->cast<c10::OptionalType>();
          maybe && maybe->getElementType()->kind() == c10::TypeKind::TensorType) {
        return ArgumentKind::kOptionalTensorList;
      }
      return ArgumentKind::kOther;
    }
    default:
      return ArgumentKind::kOther;
  }
}

// The argument whose alias set the return carries, as `Tensor(a!)` does.
int aliased_argument(c10::FunctionSchema const& schema, c10::Argument const& returned) {
  if (returned.alias_info() == nullptr) {
    return OperatorInfo::kNotAnAlias;
  }
  auto const& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto const* const info = arguments[i].alias_info();
    if (info != nullptr && info->beforeSets() == returned.alias_info()->beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return OperatorInfo::kNotAnAlias;
}

OperatorInfo read_schema(c10::OperatorHandle const& op) {
  c10::FunctionSchema const& schema = op.schema();
  OperatorInfo info;
  info.name = schema.name();
  std::string_view base = schema.name();
  base.remove_prefix(base.find("::") + 2);
  if (!schema.overload_name().empty()) {
    info.name += "." + schema.overload_name();
  }
  bool has_generator = false;
  for (auto const& argument : schema.arguments()) {
    ArgumentInfo one;
    one.kind = kind_of(argument);
    one.written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    one.overwritten = one.written && (argument.is_out() || (info.arguments.empty() && overwrites_self(base)));
    has_generator = has_generator || one.kind == ArgumentKind::kGenerator;
    info.arguments.push_back(one);
  }
  for (auto const& returned : schema.returns()) {
    info.return_alias.push_back(aliased_argument(schema, returned));
    info.return_is_view.push_back(returned.alias_info() != nullptr && !returned.alias_info()->isWrite());
  }
  info.work = work_of(base);
  info.takes_cpu_operands = takes_cpu_operands(base);
  info.needs_values = op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
  info.hidden_random = op.hasTag(at::Tag::nondeterministic_seeded) && !has_generator;
  return info;
}

}  // namespace

OperatorInfo const& operator_info(c10::OperatorHandle const& op) {
  static std::shared_mutex mutex;
  static auto& table = *new std::unordered_map<c10::OperatorHandle, std::unique_ptr<OperatorInfo const>>();
  // Most calls of a thread are for operators it has called before: no lock for those.
  thread_local std::unordered_map<c10::OperatorHandle, OperatorInfo const*> seen;
  if (auto const found = seen.find(op); found != seen.end()) {
    return *found->second;
  }
  {
    std::shared_lock const lock(mutex);
    if (auto const found = table.find(op); found != table.end()) {
      return *seen.emplace(op, found->second.get()).first->second;
    }
  }
  auto fresh = std::make_unique<OperatorInfo const>(read_schema(op));
  std::unique_lock const lock(mutex);
  return *seen.emplace(op, table.emplace(op, std::move(fresh)).first->second.get()).first->second;
}

}  // namespace noria::simtorch

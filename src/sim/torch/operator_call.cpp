#include "sim/torch/operator_call.h"

#include <algorithm>

#include "sim/torch/device_allocator.h"
#include "sim/torch/dry_run.h"
#include "sim/torch/generator.h"
#include "sim/torch/kernel_cost.h"
#include "sim/torch/storage.h"

namespace noria::simtorch {
namespace {

// Calls `visit` with every tensor of an argument.
template <typename Visit>
void for_each_tensor(c10::IValue const& value, Visit&& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList()) {
    for (c10::IValue const& element : value.toListRef()) {
      if (element.isTensor()) {
        visit(element.toTensor());
      }
    }
  }
}

bool holds_tensors(ArgumentKind kind) {
  return kind == ArgumentKind::kTensor || kind == ArgumentKind::kTensorList ||
         kind == ArgumentKind::kOptionalTensorList;
}

sim::ComputeType compute_type(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble:
      return sim::ComputeType::kFloat64;
    case c10::ScalarType::Half:
    case c10::ScalarType::ComplexHalf:
      return sim::ComputeType::kFloat16;
    case c10::ScalarType::BFloat16:
      return sim::ComputeType::kBfloat16;
    case c10::ScalarType::Float8_e4m3fn:
    case c10::ScalarType::Float8_e4m3fnuz:
    case c10::ScalarType::Float8_e5m2:
    case c10::ScalarType::Float8_e5m2fnuz:
      return sim::ComputeType::kFloat8;
    case c10::ScalarType::Char:
    case c10::ScalarType::Byte:
      return sim::ComputeType::kInt8;
    default:
      return sim::ComputeType::kFloat32;
  }
}

sim::Range as_range(ByteRange range) {
  return {reinterpret_cast<void const*>(range.begin), range.size()};  // NOLINT(performance-no-int-to-ptr)
}

bool same_geometry(at::Tensor const& a, at::Tensor const& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset();
}

}  // namespace

OperatorCall::OperatorCall(c10::OperatorHandle const& op, torch::jit::Stack* stack)
    : op_(op), info_(operator_info(op)), stack_(*stack) {
  std::size_t const count = info_.arguments.size();
  auto const first = stack_.end() - static_cast<std::ptrdiff_t>(count);
  arguments_.reserve(count);
  std::move(first, stack_.end(), std::back_inserter(arguments_));
  stack_.erase(first, stack_.end());
  gather();
}

void OperatorCall::gather() {
  std::optional<c10::Device> named;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    ArgumentInfo const& argument = info_.arguments[i];
    if (holds_tensors(argument.kind)) {
      for_each_tensor(arguments_[i], [&](at::Tensor const& tensor) { note_tensor(tensor, argument); });
    } else if (argument.kind == ArgumentKind::kDevice && arguments_[i].isDevice()) {
      named = arguments_[i].toDevice();
    }
  }
  c10::DeviceIndex device = -1;
  if (!operands_.empty()) {
    device = operands_.front().tensor->device().index();
  } else if (named.has_value()) {
    device = named->index();
  }
  stream_ = current_stream(device);
}

void OperatorCall::note_tensor(at::Tensor const& tensor, ArgumentInfo const& argument) {
  if (on_sim(tensor)) {
    operands_.push_back({&tensor, at::Tensor(), !argument.overwritten, argument.written});
  }
}

void OperatorCall::check_devices() const {
  if (operands_.empty()) {
    return;
  }
  c10::Device const common = operands_.front().tensor->device();
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    ArgumentInfo const& argument = info_.arguments[i];
    if (!holds_tensors(argument.kind)) {
      continue;
    }
    for_each_tensor(arguments_[i], [&](at::Tensor const& tensor) {
      if (!tensor.defined() || tensor.device() == common) {
        return;
      }
      bool const host_operand = tensor.is_cpu() && !argument.written && (tensor.dim() == 0 || info_.takes_cpu_operands);
      TORCH_CHECK(host_operand, "Expected all tensors to be on the same device, but found at least two devices, ",
                  common, " and ", tensor.device(), "! (when checking argument for argument ",
                  op_.schema().arguments()[i].name(), " in method ", info_.name, ")");
    });
  }
}

bool OperatorCall::must_stay_dry() const {
  if (!dry::active()) {
    return false;
  }
  return std::ranges::any_of(operands_, [](Operand const& operand) {
    bool const unknown = operand.read && !dry::known(*operand.tensor);
    bool const no_memory = operand.written && operand.tensor->storage().nbytes() > sim::kSmallBlock;
    return unknown || no_memory;
  });
}

void OperatorCall::compute(HostKernel kernel) {
  substitute(Target::kCpu);
  sim::KernelScope const scope = begin();
  {
    HostKernelScope const host;
    std::optional<BorrowedDefaultGenerator> draws;
    if (info_.hidden_random) {
      draws.emplace(static_cast<c10::DeviceIndex>(stream_.device));
    }
    kernel(op_, c10::DispatchKey::CPU, &stack_);
  }
  settle_written(Target::kCpu);
  wrap_results(Target::kCpu);
  end(scope);
}

void OperatorCall::plan(HostKernel kernel) {
  if (info_.needs_values) {
    dry::refuse(info_.name);
  }
  substitute(Target::kMeta);
  sim::KernelScope const scope = begin();
  try {
    at::AutoDispatchBelowAutograd const below;
    at::DisableRecordFunctionGuard const quiet;
    kernel(op_, c10::DispatchKey::Meta, &stack_);
  } catch (c10::NotImplementedError const& error) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "a dry run of the simulator cannot tell the shape of what ", info_.name,
                                " returns: PyTorch has no shape function for it. ", error.what_without_backtrace());
  }
  settle_written(Target::kMeta);
  wrap_results(Target::kMeta);
  end(scope);
}

void OperatorCall::substitute(Target target) {
  next_operand_ = 0;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    stack_.push_back(substitute(arguments_[i], info_.arguments[i].kind, target));
  }
}

at::Tensor OperatorCall::substitute(at::Tensor const& tensor, Target target) {
  if (!on_sim(tensor)) {
    // Shape functions want all operands on one device, and numbers in tensors' clothes on the CPU.
    bool const on_host = target == Target::kMeta && tensor.defined() && tensor.is_cpu() &&
                         !tensor.unsafeGetTensorImpl()->is_wrapped_number();
    return on_host ? meta_alias(tensor) : tensor;
  }
  Operand& operand = operands_[next_operand_++];
  operand.alias = target == Target::kCpu ? cpu_alias(tensor) : meta_alias(tensor);
  return operand.alias;
}

c10::IValue OperatorCall::substitute(c10::IValue const& value, ArgumentKind kind, Target target) {
  switch (kind) {
    case ArgumentKind::kTensor:
      return value.isTensor() ? c10::IValue(substitute(value.toTensor(), target)) : value;
    case ArgumentKind::kTensorList: {
      if (!value.isTensorList()) {
        return value;
      }
      c10::List<at::Tensor> list;
      list.reserve(value.toListRef().size());
      for (c10::IValue const& element : value.toListRef()) {
        list.push_back(substitute(element.toTensor(), target));
      }
      return list;
    }
    case ArgumentKind::kOptionalTensorList: {
      if (!value.isList()) {
        return value;
      }
      c10::List<std::optional<at::Tensor>> list;
      for (c10::IValue const& element : value.toListRef()) {
        list.push_back(element.isTensor() ? std::optional(substitute(element.toTensor(), target)) : std::nullopt);
      }
      return list;
    }
    case ArgumentKind::kDevice:
      if (value.isDevice() && value.toDevice().type() == kSimDevice) {
        return c10::Device(target == Target::kCpu ? c10::kCPU : c10::kMeta);
      }
      return value;
    case ArgumentKind::kGenerator:
      return target == Target::kCpu ? host_generator(value) : c10::IValue();
    case ArgumentKind::kOther:
      return value;
  }
  return value;
}

c10::IValue OperatorCall::host_generator(c10::IValue const& value) const {
  if (value.isNone()) {
    return default_generator(static_cast<c10::DeviceIndex>(stream_.device)).get<SimGenerator>()->cpu();
  }
  at::Generator const generator = value.toGenerator();
  TORCH_CHECK(generator.device().type() == kSimDevice, "Expected a 'sim' device type for generator but found '",
              generator.device(), "'");
  return generator.get<SimGenerator>()->cpu();
}

sim::KernelScope OperatorCall::begin() const {
  c10::SmallVector<sim::Range, 8> reads;
  c10::SmallVector<sim::Range, 4> writes;
  for (Operand const& operand : operands_) {
    sim::Range const range = as_range(byte_range(*operand.tensor));
    if (range.bytes == 0) {
      continue;
    }
    if (operand.read) {
      reads.push_back(range);
    }
    if (operand.written) {
      writes.push_back(range);
    }
  }
  return runtime().begin_kernel(stream_, info_.name, {reads.data(), reads.size()}, {writes.data(), writes.size()});
}

void OperatorCall::end(sim::KernelScope const& scope) {
  std::size_t const count = info_.return_alias.size();
  std::span<c10::IValue const> const results(stack_.data() + stack_.size() - count, count);
  Flops const flops = count_flops(info_, {arguments_.data(), arguments_.size()}, results);
  sim::KernelCost cost{.flops = flops.count, .type = compute_type(flops.dtype)};
  for (Operand const& operand : operands_) {
    std::size_t const bytes = distinct_bytes(*operand.tensor);
    cost.bytes += (operand.read ? bytes : 0) + (operand.written ? bytes : 0);
  }
  for (sim::Range const& range : fresh_) {
    cost.bytes += range.bytes;
  }
  runtime().end_kernel(scope, cost, {fresh_.data(), fresh_.size()});
  if (info_.needs_values) {
    runtime().synchronize_stream(stream_);
  }
}

void OperatorCall::settle_written(Target target) {
  for (Operand const& operand : operands_) {
    if (operand.written) {
      settle(operand, target);
    }
  }
}

// An `out=` operand that the kernel resized has another storage or another shape than the simulated tensor it stands
// for.
void OperatorCall::settle(Operand const& operand, Target target) {
  at::Tensor const& tensor = *operand.tensor;
  auto* const ours = tensor.storage().unsafeGetStorageImpl();
  auto* const theirs = operand.alias.storage().unsafeGetStorageImpl();
  if (target == Target::kMeta) {
    if (theirs->nbytes() > ours->nbytes()) {
      resize_storage(tensor.storage(), theirs->nbytes());
    }
  } else if (theirs->data() != ours->_mutable_data_ptr_no_checks().get()) {
    ours->set_data_ptr_noswap(adopt_on(stream_, operand.alias.storage()));
    ours->set_nbytes(theirs->nbytes());
  }
  if (!same_geometry(tensor, operand.alias)) {
    tensor.unsafeGetTensorImpl()->set_storage_offset(operand.alias.storage_offset());
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(operand.alias.sizes(), operand.alias.strides());
  }
  if (!dry::active()) {
    return;
  }
  if (target == Target::kCpu) {
    dry::learn(tensor);
  } else {
    ByteRange const range = byte_range(tensor);
    dry::forget(as_range(range).pointer, range.size());
  }
}

void OperatorCall::wrap_results(Target target) {
  std::size_t const count = info_.return_alias.size();
  std::size_t const first = stack_.size() - count;
  for (std::size_t i = 0; i < count; ++i) {
    stack_[first + i] = wrap(stack_[first + i], i, target);
  }
}

c10::IValue OperatorCall::wrap(c10::IValue const& value, std::size_t index, Target target) {
  int const aliased = info_.return_alias[index];
  if (aliased != OperatorInfo::kNotAnAlias && !info_.return_is_view[index] &&
      !arguments_[static_cast<std::size_t>(aliased)].isNone()) {
    return arguments_[static_cast<std::size_t>(aliased)];
  }
  if (value.isTensor()) {
    return wrap_fresh(value.toTensor(), target);
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (c10::IValue const& element : value.toListRef()) {
      list.push_back(wrap_fresh(element.toTensor(), target));
    }
    return list;
  }
  return value;
}

at::Tensor OperatorCall::wrap_fresh(at::Tensor const& result, Target target) {
  if (!result.defined()) {
    return result;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == c10::kStrided && !result.is_quantized(), info_.name, " returns a ",
                              result.layout(), " tensor of type ", result.scalar_type(),
                              ", and the simulated device has dense tensors only");
  c10::StorageImpl* const theirs = result.storage().unsafeGetStorageImpl();
  for (Operand const& operand : operands_) {
    if (operand.alias.storage().unsafeGetStorageImpl() == theirs) {
      return view_of(*operand.tensor, result);
    }
  }
  for (auto const& [storage, ours] : adopted_) {
    if (storage == theirs) {
      return sim_tensor(ours, result);
    }
  }
  c10::DataPtr data =
      target == Target::kCpu ? adopt_on(stream_, result.storage()) : allocate_on(stream_, theirs->nbytes());
  if (data.get() != nullptr) {
    fresh_.push_back({data.get(), theirs->nbytes()});
  }
  c10::Storage ours(c10::Storage::use_byte_size_t(), theirs->nbytes(), std::move(data), device_allocator(), true);
  adopted_.emplace_back(theirs, ours);
  at::Tensor const tensor = sim_tensor(std::move(ours), result);
  if (target == Target::kCpu) {
    dry::learn(tensor);
  }
  return tensor;
}

}  // namespace noria::simtorch

#include "engine/net.h"

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <unordered_map>

#include "core/log.h"
#include "engine/engine.h"

namespace noria {
namespace {

thread_local int t_paused = 0;

/// What the net must know of an operator, found once from its schema.
struct OperatorTraits {
  bool pure_view = false;    // or looks at no bytes at all
  std::vector<bool> writes;  // per argument
  // Operators that change running statistics when their training argument is true, and do not declare it.
  int training_argument = -1;
  std::vector<int> statistics;
};

/// Operators that look at a tensor and at none of its bytes; their schemas do not tell.
bool reads_no_bytes(std::string const& name) {
  static std::set<std::string> const kNames{"aten::_has_compatible_shallow_copy_type",
                                            "aten::set_data",
                                            "aten::data",
                                            "aten::is_pinned",
                                            "aten::_is_zerotensor",
                                            "aten::is_same_size",
                                            "aten::_version",
                                            "aten::requires_grad_",
                                            "aten::retains_grad",
                                            "aten::retain_grad",
                                            "aten::output_nr",
                                            "aten::is_leaf",
                                            "aten::record_stream",
                                            "aten::size",
                                            "aten::stride",
                                            "aten::numel",
                                            "aten::dim",
                                            "aten::sym_size",
                                            "aten::sym_stride",
                                            "aten::sym_numel",
                                            "aten::sym_storage_offset",
                                            "aten::is_floating_point",
                                            "aten::is_complex",
                                            "aten::is_conj",
                                            "aten::is_neg",
                                            "aten::is_inference",
                                            "aten::is_signed",
                                            "aten::result_type",
                                            "aten::_nested_tensor_size",
                                            "aten::empty_like",
                                            "aten::zeros_like",
                                            "aten::ones_like",
                                            "aten::full_like",
                                            "aten::rand_like",
                                            "aten::randn_like",
                                            "aten::new_empty",
                                            "aten::new_zeros",
                                            "aten::new_ones",
                                            "aten::new_full",
                                            "aten::new_empty_strided"};
  return kNames.contains(name);
}

OperatorTraits read_schema(c10::FunctionSchema const& schema) {
  OperatorTraits traits;
  bool any_write = false;
  for (c10::Argument const& argument : schema.arguments()) {
    bool const writes = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    traits.writes.push_back(writes);
    any_write = any_write || writes;
  }
  if (!any_write) {
    traits.writes.clear();
  }
  bool returns_alias = !schema.returns().empty();
  for (c10::Argument const& result : schema.returns()) {
    returns_alias = returns_alias && result.alias_info() != nullptr && !result.alias_info()->isWrite();
  }
  traits.pure_view = (returns_alias && !any_write) || reads_no_bytes(schema.name());
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    std::string const& name = schema.arguments()[i].name();
    if (name == "running_mean" || name == "running_var") {
      traits.statistics.push_back(static_cast<int>(i));
    } else if (name == "training" || name == "use_input_stats" || name == "train") {
      traits.training_argument = static_cast<int>(i);
    }
  }
  return traits;
}

/// Schemas live as long as the process's operators, and each has a name string of its own: its address is the key.
OperatorTraits const* traits_of(at::RecordFunction const& function) {
  static std::shared_mutex mutex;
  static auto* const known = new std::unordered_map<char const*, std::unique_ptr<OperatorTraits>>;  // leaked: see Log
  char const* const key = function.name();
  thread_local char const* last_key = nullptr;
  thread_local OperatorTraits const* last = nullptr;
  if (key == last_key) {
    return last;
  }
  {
    std::shared_lock const lock(mutex);
    auto const found = known->find(key);
    if (found != known->end()) {
      last_key = key;
      last = found->second.get();
      return last;
    }
  }
  std::optional<c10::FunctionSchema> const schema = function.operator_schema();
  if (!schema) {
    return nullptr;  // a user's own scope; its name may be a temporary, so nothing is kept
  }
  std::unique_lock const lock(mutex);
  auto const [entry, fresh] = known->try_emplace(key, std::make_unique<OperatorTraits>(read_schema(*schema)));
  return entry->second.get();
}

Page* page_of(at::Tensor const& tensor) {
  at::TensorImpl const* const impl = tensor.unsafeGetTensorImpl();
  if (!tensor.defined() || !impl->has_storage()) {
    return nullptr;
  }
  c10::StorageImpl* const storage = impl->unsafe_storage().unsafeGetStorageImpl();
  return storage != nullptr ? Page::of(storage) : nullptr;
}

/// Groups held from the start of an operator to its end, and pages refused to it.
struct Held final : at::ObserverContext {
  std::vector<std::pair<std::shared_ptr<Engine>, plan::GroupIndex>> groups;
  std::vector<std::pair<std::shared_ptr<Engine>, Page*>> refused;

  void let_go() noexcept {
    for (auto const& [engine, group] : groups) {
      engine->end_group(group);
    }
    groups.clear();
    for (auto const& [engine, page] : refused) {
      engine->allow(*page);
    }
    refused.clear();
  }
};

/// The managed pages among the inputs of one operator.
class Inputs {
 public:
  explicit Inputs(OperatorTraits const* traits) : traits_(traits) {}

  void add(c10::IValue const& value, std::size_t index, bool statistics_change) {
    bool writes = traits_ != nullptr && index < traits_->writes.size() && traits_->writes[index];
    if (statistics_change) {
      for (int i : traits_->statistics) {
        writes = writes || static_cast<std::size_t>(i) == index;
      }
    }
    if (value.isTensor()) {
      add(value.toTensor(), writes);
    } else if (value.isList()) {
      for (c10::IValue const& element : value.toListRef()) {
        if (!element.isTensor()) {
          if (element.isNone()) {
            continue;
          }
          break;  // a list of numbers
        }
        add(element.toTensor(), writes);
      }
    }
  }

  /// Brings all of them in. When that fails none is: an operator over many weights must not change the first ones and
  /// then fail at a later one. Operators that it is made of are seen by themselves.
  std::unique_ptr<Held> bring_in(char const* operator_name) {
    if (touched_.empty()) {
      return nullptr;
    }
    Held held;
    constexpr int kMostTries = 3;
    for (int tries = 1;; ++tries) {
      try {
        c10::SmallVector<Engine*, 1> done;
        for (Touch const& touch : touched_) {
          if (std::ranges::find(done, touch.engine) == done.end()) {
            bring_in_all_of(*touch.engine, held);
            done.push_back(touch.engine);
          }
        }
        break;
      } catch (std::exception const& error) {
        held.let_go();
        if (refuse(held, operator_name, error)) {
          return std::make_unique<Held>(std::move(held));
        }
        if (tries == kMostTries) {
          break;  // something else is wrong; what this operator needs is there
        }
        // Another thread has brought all of them in meanwhile.
      }
    }
    for (Touch const& touch : touched_) {
      if (touch.writes) {
        touch.page->mark_dirty();
      }
    }
    return held.groups.empty() ? nullptr : std::make_unique<Held>(std::move(held));
  }

 private:
  struct Touch {
    Page* page;
    Engine* engine;
    bool writes;
  };

  void add(at::Tensor const& tensor, bool writes) {
    Page* const page = page_of(tensor);
    Engine* const engine = page != nullptr ? page->engine() : nullptr;
    if (engine != nullptr && engine->running()) {
      touched_.push_back({.page = page, .engine = engine, .writes = writes});
    }
  }

  /// The operator will raise at what is not there. False when all of it is.
  bool refuse(Held& held, char const* operator_name, std::exception const& error) {
    std::string why = std::string(operator_name) + " needs it";
    if (touched_.size() > 1) {
      why += " together with " + std::to_string(touched_.size() - 1) + " more weights";
    }
    why += std::string(": ") + error.what();
    std::string_view const name = operator_name;
    if (touched_.size() > 1 && name.find("_fused_") != std::string_view::npos) {
      why += ". An optimizer takes its weights one by one with fused=False, foreach=False";
    } else if (touched_.size() > 1 && name.find("_foreach_") != std::string_view::npos) {
      why += ". An optimizer takes its weights one by one with foreach=False";
    }
    for (Touch const& touch : touched_) {
      if (touch.engine->refuse(*touch.page, why)) {
        held.refused.emplace_back(touch.engine->shared_from_this(), touch.page);
      }
    }
    return !held.refused.empty();
  }

  /// Residents too: without a use another thread might plan anew and take the place meanwhile.
  void bring_in_all_of(Engine& engine, Held& held) {
    std::vector<plan::GroupIndex> wanted;
    for (Touch const& touch : touched_) {
      plan::GroupIndex const group = touch.page->group();
      if (touch.engine != &engine || engine.in_use_here(group)) {
        continue;
      }
      if (!touch.page->is_open()) {
        engine.count_net_fault();
      }
      if (std::ranges::find(wanted, group) == wanted.end()) {
        wanted.push_back(group);
      }
    }
    if (!wanted.empty()) {
      engine.begin_groups(wanted);
      for (plan::GroupIndex group : wanted) {
        held.groups.emplace_back(engine.shared_from_this(), group);
      }
    }
  }

  OperatorTraits const* traits_;
  c10::SmallVector<Touch, 4> touched_;
};

std::unique_ptr<at::ObserverContext> on_start(at::RecordFunction const& function) {
  if (t_paused > 0) {
    return nullptr;
  }
  auto const inputs = function.inputs();
  bool any = false;
  for (c10::IValue const& value : inputs) {
    any = any || value.isTensor() || value.isList();
  }
  if (!any) {
    return nullptr;
  }
  OperatorTraits const* const traits = traits_of(function);
  if (traits != nullptr && traits->pure_view) {
    return nullptr;
  }
  OperatorNet::Pause const pause;  // copies of a generic device are operators too
  bool statistics_change = false;
  if (traits != nullptr && !traits->statistics.empty() && traits->training_argument >= 0 &&
      static_cast<std::size_t>(traits->training_argument) < inputs.size()) {
    c10::IValue const& training = inputs[static_cast<std::size_t>(traits->training_argument)];
    statistics_change = training.isBool() && training.toBool();
  }
  Inputs managed(traits);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    managed.add(inputs[i], i, statistics_change);
  }
  return managed.bring_in(function.name());
}

void on_end(at::RecordFunction const& /*function*/, at::ObserverContext* context) {
  if (context == nullptr) {
    return;
  }
  OperatorNet::Pause const pause;
  static_cast<Held*>(context)->let_go();
}

struct NetState {
  std::mutex mutex;
  int engines = 0;
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
};

NetState& net() {
  static auto* const state = new NetState;
  return *state;
}

}  // namespace

OperatorNet::Pause::Pause() { ++t_paused; }
OperatorNet::Pause::~Pause() { --t_paused; }

void OperatorNet::add_engine() {
  NetState& state = net();
  std::scoped_lock const lock(state.mutex);
  if (state.engines++ > 0) {
    return;
  }
  if (state.handle == at::INVALID_CALLBACK_HANDLE) {
    // Added once and switched afterwards: removing a callback wants a quiet process.
    state.handle = at::addGlobalCallback(
        at::RecordFunctionCallback(&on_start, &on_end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  } else {
    at::reenableCallback(state.handle);
  }
}

bool OperatorNet::in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

int OperatorNet::engines() {
  NetState& state = net();
  std::scoped_lock const lock(state.mutex);
  return state.engines;
}

void OperatorNet::remove_engine() noexcept {
  NetState& state = net();
  std::scoped_lock const lock(state.mutex);
  if (--state.engines == 0) {
    try {
      at::disableCallback(state.handle);
    } catch (std::exception const& error) {
      log(LogLevel::kError, std::string("the operator net could not be switched off: ") + error.what());
    }
  }
}

}  // namespace noria

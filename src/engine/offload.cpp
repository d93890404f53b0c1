#include <noria/error.h>
#include <noria/offload.h>
#include <noria/trace.h>

#include <algorithm>
#include <set>

#include "core/log.h"
#include "engine/checkpoint_weights.h"
#include "engine/engine.h"
#include "engine/folder_store.h"
#include "engine/host_tensors.h"
#include "engine/model_tree.h"
#include "io/offload_writer.h"

namespace noria {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

constexpr double kReservedShare = 0.2;  // of what is free, for activations

void check_options(OffloadOptions const& options) {
  NORIA_CHECK(options.device.type() != c10::kMeta, std::invalid_argument,
              "the meta device has no memory; offload to the device that shall compute");
  NORIA_CHECK(options.trigger == Trigger::kOperators, std::invalid_argument,
              "there is no such trigger; C++ modules have Trigger::kOperators");
}

Bytes budget_of(OffloadOptions const& options, DeviceBackend& backend) {
  if (options.budget && options.budget->share == 0.0) {
    return options.budget->bytes;
  }
  Bytes const free = backend.mem_get_info().free_bytes;
  if (options.budget) {
    return options.budget->resolve(free);
  }
  Bytes const reserve = options.reserve.value_or(ByteAmount::of_free(kReservedShare)).resolve(free);
  return free - std::min(free, reserve);
}

Bytes pinned_limit(OffloadOptions const& options) {
  Bytes const available = DeviceBackend::get(c10::kCPU).mem_get_info().free_bytes;
  return options.host_budget ? std::min(options.host_budget->resolve(available), available) : available / 2;
}

EngineSettings settings_of(OffloadOptions const& options) {
  Pinning const pin = !options.pin ? Pinning::kAuto : (*options.pin ? Pinning::kOn : Pinning::kOff);
  return {.device = options.device,
          .budget = budget_of(options, DeviceBackend::get(options.device)),
          .pin = pin,
          .pinned_limit = pinned_limit(options),
          .verify = options.verify};
}

std::shared_ptr<Engine> make_engine(OffloadOptions const& options, ModelTree const& model, TensorTable const& table) {
  EngineSettings const settings = settings_of(options);
  return Engine::create(settings, table.pages(),
                        model.group(table, {.granularity = options.granularity}, settings.budget));
}

void refuse_managed(ModelTree const& model) {
  for (ModelTree::Tensor const& weight : model.tensors) {
    NORIA_CHECK(
        !weight.tensor.has_storage() || Page::of(weight.tensor.storage().unsafeGetStorageImpl()) == nullptr,
        std::invalid_argument,
        "'" + weight.name + "' of " + model.type + " is offloaded by noria already; call remove() on its handle first");
  }
}

void refuse_empty(ModelTree const& model) {
  for (ModelTree::Tensor const& weight : model.tensors) {
    NORIA_CHECK(weight.tensor.numel() == 0 || !has_no_values(weight.tensor), std::invalid_argument,
                "'" + weight.name + "' of " + model.type +
                    " has no values; give the checkpoint that has them to noria::Offload or noria::load_weights");
  }
}

/// `tensor` goes on with the contents of `other`; every handle to it follows.
void repoint(at::Tensor const& tensor, at::Tensor const& other) {
  if (tensor.is_same(other)) {
    return;
  }
  if (tensor.is_meta()) {
    tensor.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());  // set_data refuses
    return;
  }
  tensor.set_data(other);
  if (at::Tensor const& gradient = tensor.grad(); gradient.defined() && gradient.device() != other.device()) {
    gradient.set_data(gradient.to(other.device()));
  }
}

std::vector<std::vector<std::size_t>> tensors_by_group(ModelTree const& model, TensorTable const& table,
                                                       Engine& engine) {
  std::vector<std::vector<std::size_t>> out(engine.group_count());
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    if (plan::PageIndex const page = table.page_of(i); page != TensorTable::kNoPage) {
      out[engine.page(page).group()].push_back(i);
    }
  }
  return out;
}

/// Groups of `engine` in which the weights of a part of its model are.
std::vector<plan::GroupIndex> groups_of(Engine const& engine, ModelTree const& part) {
  std::set<plan::GroupIndex> groups;
  bool others = false;
  for (ModelTree::Tensor const& weight : part.tensors) {
    if (weight.tensor.numel() == 0 || !weight.tensor.has_storage()) {
      continue;
    }
    Page const* const page = Page::of(weight.tensor.storage().unsafeGetStorageImpl());
    if (page != nullptr && page->engine() == &engine) {
      groups.insert(page->group());
    } else {
      others = true;
    }
  }
  NORIA_CHECK(!groups.empty() || !others, std::invalid_argument,
              part.type + " is no part of the model that this handle offloads");
  return {groups.begin(), groups.end()};
}

}  // namespace

struct Offload::State {
  std::shared_ptr<Engine> engine;
  std::vector<WeakTensor> tensors;  // of the model, which may die first
  std::mutex removing;
  bool removed = false;

  static std::unique_ptr<State> begin(ModelTree const& model, Checkpoint const* checkpoint,
                                      OffloadOptions const& options);
  void take(ModelTree const& model, TensorTable& table, CheckpointWeights const* files, OffloadOptions const& options);
  void bring_home();
  /// False when that has happened already.
  bool remove();
  UseScope scope(ModelTree const& part, bool resident);
};

std::unique_ptr<Offload::State> Offload::State::begin(ModelTree const& model, Checkpoint const* checkpoint,
                                                      OffloadOptions const& options) {
  check_options(options);
  NORIA_CHECK(checkpoint == nullptr || options.disk.empty(), std::invalid_argument,
              "the weights stay in the checkpoint; leave `disk` empty");
  refuse_managed(model);
  TensorTable table = model.table();
  std::optional<CheckpointWeights> files;
  if (checkpoint != nullptr) {
    files.emplace(*checkpoint, model, table);
  } else {
    refuse_empty(model);
  }
  auto state = std::make_unique<State>();
  state->engine = make_engine(options, model, table);
  for (ModelTree::Tensor const& weight : model.tensors) {
    state->tensors.emplace_back(weight.tensor.getIntrusivePtr());
  }
  try {
    state->take(model, table, files ? &*files : nullptr, options);
  } catch (...) {
    try {
      state->bring_home();
    } catch (std::exception const& error) {
      log(LogLevel::kError, std::string("offloading failed, and so did taking it back: ") + error.what());
    }
    throw;
  }
  return state;
}

void Offload::State::take(ModelTree const& model, TensorTable& table, CheckpointWeights const* files,
                          OffloadOptions const& options) {
  constexpr Bytes kMemoryPage = 4096;
  std::shared_ptr<FolderStore> folder;
  if (!options.disk.empty()) {
    folder = FolderStore::open_or_write(options.disk / component_folder(model.type), *engine, table);
  }
  // On the cpu the arena is the host memory there is.
  Bytes room = options.host_budget && options.device.type() != c10::kCPU ? pinned_limit(options) : 0;
  auto const tensors = tensors_by_group(model, table, *engine);
  for (plan::GroupIndex group = 0; group < engine->group_count(); ++group) {
    if (folder) {
      folder->give_home(*engine, group);
    }
    if (!folder && (files == nullptr || !files->give_home(*engine, model, table, group))) {
      engine->give_memory_home(group);
    } else if (Bytes const booked = align_up(engine->group_bytes(group), kMemoryPage); booked <= room) {
      engine->bring_home(group);
      room -= booked;
    }
    for (std::size_t i : tensors[group]) {
      repoint(model.tensors[i].tensor, table.manage(*engine, i));
    }
  }
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    at::Tensor const& tensor = model.tensors[i].tensor;
    if (table.page_of(i) == TensorTable::kNoPage && !tensor.is_meta()) {
      repoint(tensor, tensor.detach().to(engine->options().device));
    }
  }
  engine->start();
}

void Offload::State::bring_home() {
  engine->evict_all();
  c10::Device const device = engine->options().device;
  HostTensors hosts;
  for (WeakTensor const& weak : tensors) {
    auto const impl = weak.lock();
    if (!impl || device.is_cpu()) {
      continue;
    }
    at::Tensor const tensor(impl);
    if (Page::of(tensor.storage().unsafeGetStorageImpl()) != nullptr) {
      repoint(tensor, hosts.of(tensor));
    } else if (tensor.numel() == 0) {
      repoint(tensor, tensor.detach().cpu());
    }
  }
  for (plan::PageIndex page = 0; page < engine->page_count(); ++page) {
    if (engine->page(page).alive() && device.is_cpu()) {
      engine->detach_to_home(page);
    } else if (engine->page(page).alive()) {
      engine->detach_to_device(page);  // somebody else has the storage: a view, a tensor saved for backward
    }
  }
  engine->stop();
}

bool Offload::State::remove() {
  std::scoped_lock const lock(removing);
  if (removed) {
    return false;
  }
  bring_home();
  removed = true;
  return true;
}

UseScope Offload::State::scope(ModelTree const& part, bool resident) {
  return {engine, groups_of(*engine, part), resident};
}

UseScope::UseScope(std::shared_ptr<Engine> engine, std::vector<std::uint32_t> groups, bool resident)
    : engine_(std::move(engine)), groups_(std::move(groups)), resident_(resident) {
  if (resident_) {
    engine_->hold(groups_);
  } else if (!groups_.empty()) {
    engine_->begin_groups(groups_);
  }
}

UseScope::~UseScope() {
  if (resident_) {
    engine_->let_go(groups_);
  } else {
    for (plan::GroupIndex group : groups_) {
      engine_->end_group(group);
    }
  }
}

TraceScope::TraceScope(std::shared_ptr<Engine> engine, std::filesystem::path path)
    : engine_(std::move(engine)), path_(std::move(path)) {
  engine_->start_trace();
}

void TraceScope::write() {
  if (std::shared_ptr<Engine> const engine = std::exchange(engine_, nullptr)) {
    write_chrome_trace(path_, engine->stop_trace());
  }
}

TraceScope::~TraceScope() {
  try {
    write();
  } catch (std::exception const& error) {
    log(LogLevel::kError, error.what());
  }
}

Offload::Offload(torch::nn::Module const& module, OffloadOptions const& options)
    : state_(State::begin(ModelTree::of(module), nullptr, options)) {}

Offload::Offload(torch::nn::Module const& module, Checkpoint const& checkpoint, OffloadOptions const& options)
    : state_(State::begin(ModelTree::of(module), &checkpoint, options)) {}

Offload::Offload(torch::jit::Module const& module, OffloadOptions const& options)
    : state_(State::begin(ModelTree::of(module), nullptr, options)) {}

Offload::Offload(torch::jit::Module const& module, Checkpoint const& checkpoint, OffloadOptions const& options)
    : state_(State::begin(ModelTree::of(module), &checkpoint, options)) {}

Offload::Offload(Offload&&) noexcept = default;
Offload& Offload::operator=(Offload&&) noexcept = default;
Offload::~Offload() = default;

Offload::State& Offload::state() const {
  NORIA_CHECK(state_ != nullptr, Error, "this noria::Offload was moved from");
  return *state_;
}

Offload::State& Offload::running() const {
  State& state = this->state();
  NORIA_CHECK(state.engine->running(), Error, "offloading of this model has ended; make a new noria::Offload");
  return state;
}

c10::Device Offload::device() const { return state().engine->options().device; }

Status Offload::status() const { return state().engine->status(); }

UseScope Offload::use(torch::nn::Module const& module) const {
  return running().scope(ModelTree::of(module), /*resident=*/false);
}

UseScope Offload::use(torch::jit::Module const& module) const {
  return running().scope(ModelTree::of(module), /*resident=*/false);
}

UseScope Offload::resident(torch::nn::Module const& module) const {
  return running().scope(ModelTree::of(module), /*resident=*/true);
}

UseScope Offload::resident(torch::jit::Module const& module) const {
  return running().scope(ModelTree::of(module), /*resident=*/true);
}

TraceScope Offload::trace(std::filesystem::path path) const { return {running().engine, std::move(path)}; }

void Offload::resize(ByteAmount budget) {
  Engine& engine = *running().engine;
  bool const relative = budget.share > 0.0;
  Bytes const free = relative ? engine.backend().mem_get_info().free_bytes + engine.status().device_bytes : 0;
  engine.resize(budget.resolve(free));
}

void Offload::flush() { running().engine->flush(); }

void Offload::remove(c10::Device device) {
  if (!state().remove() || device.is_cpu()) {
    return;
  }
  for (WeakTensor const& weak : state().tensors) {
    if (auto const impl = weak.lock()) {
      at::Tensor const tensor(impl);
      repoint(tensor, tensor.detach().to(device));
    }
  }
}

}  // namespace noria

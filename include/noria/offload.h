/// Running a model whose weights do not fit the device: torch::nn modules and TorchScript, just as they are.
#pragma once

#include <c10/core/Device.h>
#include <noria/bytes.h>
#include <noria/checkpoint.h>
#include <noria/granularity.h>
#include <noria/module_handle.h>
#include <noria/status.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

namespace torch::jit {
struct Module;
}  // namespace torch::jit

namespace noria {

class Engine;

/// What says that a weight is about to be used. C++ modules have no hooks, so there is one answer; explicit scopes
/// (Offload::use) go with it.
enum class Trigger {
  kOperators  ///< every PyTorch operator, before it runs
};

/// As the arguments of Python's noria.offload, in their order.
struct OffloadOptions {
  c10::Device device = c10::kCPU;
  /// Weights on the device at once, residents and ring together; the smallest that works is the largest set of groups
  /// in use together. None: what the device has free, less `reserve`.
  std::optional<ByteAmount> budget = {};
  /// Host memory that may be page-locked; none: half of what is available. With a disk tier, also how much of the
  /// weights stays in host memory; none: nothing.
  std::optional<ByteAmount> host_budget = {};
  /// A folder for the weights, which then need no host memory: written once, and used again by later runs with the same
  /// weights. Empty: host memory.
  std::filesystem::path disk = {};
  Granularity granularity = Granularity::kAuto;
  Trigger trigger = Trigger::kOperators;
  /// Kept for activations when the budget is not given; none: a fifth.
  std::optional<ByteAmount> reserve = {};
  /// Poison freed ranges, and compare device bytes with the host copy on every load.
  bool verify = false;
  /// Page-lock the host copy; none: the engine chooses.
  std::optional<bool> pin = {};
};

/// While it is alive, weights are on the device. Ends on the thread that began it.
class [[nodiscard]] UseScope {
 public:
  UseScope(UseScope const&) = delete;
  UseScope& operator=(UseScope const&) = delete;
  ~UseScope();

 private:
  friend class Offload;
  UseScope(std::shared_ptr<Engine> engine, std::vector<std::uint32_t> groups, bool resident);

  std::shared_ptr<Engine> engine_;
  std::vector<std::uint32_t> groups_;
  bool resident_;
};

/// While it is alive, loads and uses are recorded.
class [[nodiscard]] TraceScope {
 public:
  TraceScope(TraceScope const&) = delete;
  TraceScope& operator=(TraceScope const&) = delete;
  /// Writes the file if that has not happened; a failure is only logged.
  ~TraceScope();
  /// Waits for the device and writes the file. Throws StorageError. Does nothing the second time.
  void write();

 private:
  friend class Offload;
  TraceScope(std::shared_ptr<Engine> engine, std::filesystem::path path);

  std::shared_ptr<Engine> engine_;  // null: written
  std::filesystem::path path_;
};

/// A model under management. Its parameters are tensors of the onload device from now on, and come there when an
/// operator needs them; the model's code does not change.
///
/// The handle does not own the model, nor the model the handle. As in Python, dropping the handle changes nothing: the
/// model stays offloaded, and the engine lives as long as one of its weights. To end offloading, call remove(): it
/// takes host memory for every weight, and may fail, which a destructor must not. When the model dies first the
/// handle's status() still answers; device memory is given back when both are gone.
///
/// Thread-safe, but for moving and destroying the handle itself. Errors are exceptions: std::invalid_argument for wrong
/// arguments, BudgetError, StorageError, IntegrityError, and Error after remove(). What goes wrong while an operator
/// brings a weight in is thrown by that operator: PyTorch's c10::Error, whose text begins with kEvictedPrefix.
class Offload {
 public:
  /// Takes the module's weights, which are moved to host memory or to `options.disk`. Throws std::invalid_argument when
  /// one of them is offloaded already or has no values; the module is then as it was.
  Offload(torch::nn::Module const& module, OffloadOptions const& options);
  /// Runs the module straight from its safetensors files, without a second copy in host memory. The checkpoint's values
  /// replace what the parameters hold; they may be emptied (empty_weights) or on meta. Every parameter must be there
  /// under its dotted name, in the same shape, else IntegrityError; buffers need not. Floating-point types are
  /// converted.
  Offload(torch::nn::Module const& module, Checkpoint const& checkpoint, OffloadOptions const& options);
  /// TorchScript, loaded and not frozen. Kernels that its compiler fuses are no operators: a weight that only such a
  /// kernel reads raises. Switch fusion off with torch::jit::setGraphExecutorOptimize(false).
  Offload(torch::jit::Module const& module, OffloadOptions const& options);
  Offload(torch::jit::Module const& module, Checkpoint const& checkpoint, OffloadOptions const& options);
  template <ModuleHandle Handle>
  Offload(Handle const& module, OffloadOptions const& options) : Offload(module_of(module), options) {}
  template <ModuleHandle Handle>
  Offload(Handle const& module, Checkpoint const& checkpoint, OffloadOptions const& options)
      : Offload(module_of(module), checkpoint, options) {}

  Offload(Offload&&) noexcept;
  Offload& operator=(Offload&&) noexcept;
  ~Offload();

  /// With its index.
  [[nodiscard]] c10::Device device() const;
  /// Also after remove().
  [[nodiscard]] Status status() const;

  /// The weights of `module`, a part of the model, are on the device while the scope lives, in use together; a raw
  /// pointer to one is good as long, for reading: what is written through it is lost. Throws BudgetError when they do
  /// not fit the budget at once, and std::invalid_argument for a module of another model.
  UseScope use(torch::nn::Module const& module) const;
  UseScope use(torch::jit::Module const& module) const;
  template <ModuleHandle Handle>
  UseScope use(Handle const& module) const {
    return use(module_of(module));
  }
  /// As use(), for longer: the budget is divided anew around these weights, and their addresses do not change.
  UseScope resident(torch::nn::Module const& module) const;
  UseScope resident(torch::jit::Module const& module) const;
  template <ModuleHandle Handle>
  UseScope resident(Handle const& module) const {
    return resident(module_of(module));
  }
  /// Records until the scope ends and then writes Chrome-trace JSON to `path`. Throws UnsupportedOperation on a device
  /// that cannot time.
  TraceScope trace(std::filesystem::path path) const;

  /// From the next use on; a share is of what is free and what is taken now. Throws BudgetError and keeps the old one.
  void resize(ByteAmount budget);
  /// Copies modified weights to their homes and waits for it. A checkpoint is never written: such a weight moves to
  /// host memory.
  void flush();
  /// Ends offloading: the same tensors, with their values, in memory of `device`. Throws Error while a scope or an
  /// operator uses a weight; nothing has changed then. Does nothing the second time.
  void remove(c10::Device device = c10::kCPU);

 private:
  struct State;

  [[nodiscard]] State& state() const;
  [[nodiscard]] State& running() const;

  std::unique_ptr<State> state_;
};

}  // namespace noria

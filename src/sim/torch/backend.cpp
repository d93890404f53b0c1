#include "sim/torch/backend.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceType.h>
#include <noria/error.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "sim/torch/dry_run.h"
#include "sim/torch/registration.h"
#include "sim/torch/sim_device_backend.h"

namespace noria::simtorch {
namespace {

constexpr char const* kDeviceName = "sim";

// Counts configurations, so that a thread forgets streams of an earlier one.
std::atomic<std::uint64_t> configurations{0};

// What device_count() says before enable(); see reserve().
std::atomic<int> reserved_devices{0};

struct ThreadState {
  std::uint64_t configuration = 0;
  c10::DeviceIndex device = 0;
  std::array<std::int64_t, kMaxDevices> stream{};
};

ThreadState& this_thread() noexcept {
  thread_local ThreadState state;
  std::uint64_t const now = configurations.load(std::memory_order_acquire);
  if (state.configuration != now) {
    state = ThreadState{.configuration = now};
  }
  return state;
}

void refuse_another_backend() {
  std::string const name = c10::get_privateuse1_backend(true);
  bool const renamed = name != "privateuseone" && name != kDeviceName;
  NORIA_CHECK(
      !renamed && !at::isPrivateUse1HooksRegistered(), Error,
      "this process already has the PrivateUse1 backend '" + name +
          "', and PyTorch has room for one. Start Python with TORCH_DEVICE_BACKEND_AUTOLOAD=0 so that it is not "
          "loaded, then enable the simulator");
}

void register_kernels() {
  // Leaked: unregistering kernels at exit would race with whatever still runs.
  static auto& library =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  register_views(library);
  register_storage(library);
  register_copies(library);
  register_attention(library);
  register_recurrent(library);
  register_fallback();
  register_autocast();
}

void register_everything() {
  refuse_another_backend();
  register_device_allocator();
  register_host_allocator();
  register_guard();
  register_hooks();
  register_kernels();
  c10::register_privateuse1_backend(kDeviceName);
}

}  // namespace

void enable(sim::Config config) {
  static std::mutex mutex;
  static bool registered = false;
  std::lock_guard const lock(mutex);
  NORIA_CHECK(
      config.devices.size() <= kMaxDevices, Error,
      "at most " + std::to_string(kMaxDevices) + " simulated devices, not " + std::to_string(config.devices.size()));
  if (!registered) {
    refuse_another_backend();
  }
  bool const dry = config.dry;
  sim::Runtime::configure_process(std::move(config));
  dry::configure(dry);
  configurations.fetch_add(1, std::memory_order_release);
  if (!registered) {
    register_everything();
    registered = true;
  }
  register_sim_device_backend();
}

void reserve(int devices, std::function<void()> const& run_backward) {
  if (enabled()) {
    return;
  }
  register_guard();
  reserved_devices = devices;
  auto const undo =
      std::unique_ptr<void, void (*)(void*)>(&reserved_devices, [](void* /*unused*/) { reserved_devices = 0; });
  run_backward();
}

bool enabled() noexcept { return sim::Runtime::process_if_configured() != nullptr; }

sim::Runtime& runtime() { return sim::Runtime::process(); }

c10::DeviceIndex device_count() noexcept {
  auto const* const runtime = sim::Runtime::process_if_configured();
  return static_cast<c10::DeviceIndex>(runtime == nullptr ? reserved_devices.load() : runtime->device_count());
}

c10::DeviceIndex current_device() noexcept { return this_thread().device; }

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  if (device_count() == 0) {
    runtime();  // says why there is none
  }
  TORCH_CHECK(index >= 0 && index < device_count(), "invalid device ordinal ", static_cast<int>(index),
              ": the simulator has ", static_cast<int>(device_count()), " device(s)");
  return std::exchange(this_thread().device, index);
}

void set_device_unchecked(c10::DeviceIndex index) noexcept { this_thread().device = index; }

sim::StreamRef current_stream(c10::DeviceIndex index) noexcept {
  ThreadState const& state = this_thread();
  std::size_t const device = static_cast<unsigned char>(index < 0 ? state.device : index);
  return {static_cast<int>(device), state.stream[device]};
}

sim::StreamRef exchange_stream(sim::StreamRef stream) {
  TORCH_CHECK(runtime().has_stream(stream), "stream ", stream.id, " of sim:", stream.device, " does not exist");
  std::int64_t& slot = this_thread().stream[static_cast<std::size_t>(stream.device)];
  return {stream.device, std::exchange(slot, stream.id)};
}

}  // namespace noria::simtorch

// The lock around World; what each call means stands in runtime.h.
#include "sim/runtime/runtime.h"

#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "core/fork.h"
#include "sim/runtime/world.h"

namespace noria::sim {

std::optional<CheckerMode> checker_mode(std::string_view name) {
  if (name == "raise") {
    return CheckerMode::kRaise;
  }
  if (name == "record") {
    return CheckerMode::kRecord;
  }
  if (name == "off") {
    return CheckerMode::kOff;
  }
  return std::nullopt;
}

namespace {

std::atomic<std::uint64_t> last_event{0};
std::atomic<Runtime*> process_runtime{nullptr};

// In a forked child the lock may be held by a thread that is not there, and the clocks are the parent's.
constexpr std::uint64_t kNotConfigured = ~std::uint64_t{0};
std::atomic<std::uint64_t> forks_when_configured{kNotConfigured};

bool is_forked_child() noexcept {
  std::uint64_t const then = forks_when_configured.load(std::memory_order_relaxed);
  return then != kNotConfigured && then != forks();
}

void refuse_forked_child() {
  NORIA_CHECK(
      !is_forked_child(), Error,
      "the simulated accelerator belongs to the process that enabled it, and this is a forked child of that one: "
      "start child processes with multiprocessing's 'spawn', or use cpu tensors in them");
}

}  // namespace

struct Runtime::State {
  explicit State(Config config) : world(std::make_unique<World>(std::move(config))) {}

  std::mutex mutex;
  std::unique_ptr<World> world;

  /// Runs `call(world)` under the lock.
  template <typename Call>
  auto with(Call call) {
    std::lock_guard const lock(mutex);
    return call(*world);
  }
};

Runtime::Runtime(Config config) : state_(std::make_unique<State>(std::move(config))) {}

Runtime::~Runtime() = default;

Runtime* Runtime::process_if_configured() noexcept {
  return is_forked_child() ? nullptr : process_runtime.load(std::memory_order_acquire);
}

Runtime& Runtime::process() {
  refuse_forked_child();
  Runtime* const runtime = process_if_configured();
  NORIA_CHECK(runtime != nullptr, Error, "the simulated accelerator is not enabled: call noria.sim.enable() first");
  return *runtime;
}

Runtime& Runtime::configure_process(Config config) {
  refuse_forked_child();
  static std::mutex mutex;
  std::lock_guard const lock(mutex);
  if (Runtime* const runtime = process_if_configured()) {
    runtime->configure(std::move(config));
    return *runtime;
  }
  // Leaked: tensors that outlive everything give their memory back at exit.
  auto* const runtime = new Runtime(std::move(config));
  process_runtime.store(runtime, std::memory_order_release);
  forks_when_configured.store(forks(), std::memory_order_relaxed);
  return *runtime;
}

void Runtime::forget_process() noexcept { process_runtime.store(nullptr, std::memory_order_release); }

void Runtime::configure(Config config) {
  std::lock_guard const lock(state_->mutex);
  auto const [count, bytes] = state_->world->alive();
  NORIA_CHECK(count == 0, Error,
              fmt::format("cannot configure the simulated accelerator anew while {} of its memory blocks ({}) are "
                          "alive: delete the tensors that hold them first",
                          count, format_bytes(bytes)));
  state_->world = std::make_unique<World>(std::move(config));
}

Config const& Runtime::config() const noexcept { return state_->world->config(); }

int Runtime::device_count() const noexcept { return static_cast<int>(state_->world->config().devices.size()); }

Profile const& Runtime::profile(int device) const { return state_->world->device(device).profile; }

EventId Runtime::create_event(int device, bool timing) {
  EventId const id = ++last_event;
  state_->with([&](World& world) { world.create_event(id, device, timing); });
  return id;
}

Nanoseconds Runtime::host_clock() const {
  return state_->with([&](World& world) { return world.host_clock(); });
}

Nanoseconds Runtime::device_clock(int device) const {
  return state_->with([&](World& world) { return world.device_clock(device); });
}

Nanoseconds Runtime::stream_clock(StreamRef stream) const {
  return state_->with([&](World& world) { return world.stream(stream).ready; });
}

void Runtime::advance_host(Nanoseconds time) {
  state_->with([&](World& world) { world.advance_host(time); });
}

void Runtime::reset_clocks() {
  state_->with([&](World& world) { world.reset_clocks(); });
}

StreamRef Runtime::create_stream(int device, int priority) {
  return state_->with([&](World& world) { return world.create_stream(device, priority); });
}

bool Runtime::has_stream(StreamRef stream) const {
  return state_->with([&](World& world) { return world.has_stream(stream); });
}

int Runtime::stream_priority(StreamRef stream) const {
  return state_->with([&](World& world) { return world.stream(stream).priority; });
}

std::int64_t Runtime::stream_count(int device) const {
  return state_->with([&](World& world) { return static_cast<std::int64_t>(world.device(device).streams.size()); });
}

bool Runtime::query_stream(StreamRef stream) {
  return state_->with([&](World& world) { return world.query_stream(stream); });
}

void Runtime::synchronize_stream(StreamRef stream) {
  state_->with([&](World& world) { world.synchronize_stream(stream); });
}

void Runtime::synchronize_device(int device) {
  state_->with([&](World& world) { world.synchronize_device(device); });
}

void Runtime::destroy_event(EventId event) noexcept {
  state_->with([&](World& world) { world.destroy_event(event); });
}

void Runtime::record_event(EventId event, StreamRef stream) {
  state_->with([&](World& world) { world.record_event(event, stream); });
}

void Runtime::wait_event(EventId event, StreamRef stream) {
  state_->with([&](World& world) { world.wait_event(event, stream); });
}

bool Runtime::query_event(EventId event) {
  return state_->with([&](World& world) { return world.query_event(event); });
}

void Runtime::synchronize_event(EventId event) {
  state_->with([&](World& world) { world.synchronize_event(event); });
}

Nanoseconds Runtime::elapsed(EventId begin, EventId end) const {
  return state_->with([&](World& world) { return world.elapsed(begin, end); });
}

std::uint64_t Runtime::event_generation(EventId event) const {
  return state_->with([&](World& world) { return world.event(event).generation; });
}

void* Runtime::allocate(Bytes bytes, StreamRef stream) {
  return state_->with([&](World& world) { return world.allocate(bytes, stream); });
}

void Runtime::free(void* pointer) noexcept {
  state_->with([&](World& world) { world.free(pointer); });
}

void Runtime::record_stream(void const* pointer, StreamRef stream) {
  state_->with([&](World& world) { world.record_stream(pointer, stream); });
}

void Runtime::adopt(void* pointer, Bytes bytes, StreamRef stream) {
  state_->with([&](World& world) { world.adopt(pointer, bytes, stream); });
}

void Runtime::release_adopted(void* pointer) noexcept {
  state_->with([&](World& world) { world.release_adopted(pointer); });
}

void Runtime::empty_cache(int device) {
  state_->with([&](World& world) { world.empty_cache(device); });
}

MemoryInfo Runtime::memory_info(int device) const {
  return state_->with([&](World& world) { return world.memory_info(device); });
}

std::optional<int> Runtime::device_of(void const* pointer) const {
  return state_->with([&](World& world) { return world.device_of(pointer); });
}

std::optional<BlockInfo> Runtime::find_block(void const* pointer) const {
  return state_->with([&](World& world) { return world.block_info(pointer); });
}

bool Runtime::is_real(void const* pointer) const {
  return state_->with([&](World& world) { return world.is_real(pointer); });
}

void Runtime::poison(void* pointer, Bytes bytes, StreamRef stream) {
  state_->with([&](World& world) { world.poison(pointer, bytes, stream); });
}

void* Runtime::allocate_pinned(Bytes bytes) {
  return state_->with([&](World& world) { return world.allocate_pinned(bytes); });
}

void Runtime::free_pinned(void* pointer) noexcept {
  state_->with([&](World& world) { world.free_pinned(pointer); });
}

void Runtime::record_pinned_use(void const* pointer, StreamRef stream) {
  state_->with([&](World& world) { world.record_pinned_use(pointer, stream); });
}

void Runtime::empty_pinned_cache() {
  state_->with([&](World& world) { world.empty_pinned_cache(); });
}

void Runtime::register_host(void* pointer, Bytes bytes) {
  state_->with([&](World& world) { world.register_host(pointer, bytes); });
}

void Runtime::unregister_host(void* pointer) {
  state_->with([&](World& world) { world.unregister_host(pointer); });
}

bool Runtime::is_pinned(void const* pointer) const {
  return state_->with([&](World& world) { return world.is_pinned(pointer); });
}

void* Runtime::reserve_host(Bytes bytes) {
  return state_->with([&](World& world) { return world.reserve_host(bytes); });
}

void Runtime::release_reserved_host(void* pointer) noexcept {
  state_->with([&](World& world) { world.release_reserved_host(pointer); });
}

KernelScope Runtime::begin_kernel(StreamRef stream, std::string_view name, std::span<Range const> reads,
                                  std::span<Range const> writes) {
  return state_->with([&](World& world) { return world.begin_kernel(stream, name, reads, writes); });
}

Interval Runtime::end_kernel(KernelScope const& scope, KernelCost const& cost, std::span<Range const> outputs) {
  return state_->with([&](World& world) { return world.end_kernel(scope, cost, outputs); });
}

Interval Runtime::launch(StreamRef stream, std::string_view name, std::span<Range const> reads,
                         std::span<Range const> writes, KernelCost const& cost) {
  return state_->with(
      [&](World& world) { return world.end_kernel(world.begin_kernel(stream, name, reads, writes), cost, {}); });
}

CopyResult Runtime::copy_async(void* destination, void const* source, Bytes bytes, CopyKind kind, StreamRef stream,
                               std::string_view name) {
  return state_->with([&](World& world) { return world.copy_async(destination, source, bytes, kind, stream, name); });
}

void Runtime::host_read(void const* pointer, Bytes bytes, std::string_view name) {
  state_->with([&](World& world) { world.host_access(pointer, bytes, false, name); });
}

void Runtime::host_write(void* pointer, Bytes bytes, std::string_view name) {
  state_->with([&](World& world) { world.host_access(pointer, bytes, true, name); });
}

std::vector<Race> Runtime::races() const {
  return state_->with([&](World& world) { return world.races(); });
}

std::vector<Finding> Runtime::findings() const {
  return state_->with([&](World& world) { return world.findings(); });
}

void Runtime::clear_reports() {
  state_->with([&](World& world) { world.clear_reports(); });
}

CheckerMode Runtime::checker() const noexcept {
  return state_->with([&](World& world) { return world.config().checker; });
}

void Runtime::set_checker(CheckerMode mode) {
  state_->with([&](World& world) { world.set_checker(mode); });
}

void Runtime::throw_deferred() {
  state_->with([&](World& world) { world.throw_deferred(); });
}

DeviceStats Runtime::stats(int device) const {
  return state_->with([&](World& world) { return world.stats(device); });
}

HostStats Runtime::host_stats() const {
  return state_->with([&](World& world) { return world.host_stats(); });
}

void Runtime::reset_stats(int device) {
  state_->with([&](World& world) { world.reset_stats(device); });
}

void Runtime::reset_peak_stats(int device) {
  state_->with([&](World& world) { world.reset_peak_stats(device); });
}

void Runtime::record_timeline(bool on) {
  state_->with([&](World& world) { world.record_timeline(on); });
}

std::vector<Span> Runtime::timeline() const {
  return state_->with([&](World& world) { return world.timeline(); });
}

void Runtime::clear_timeline() {
  state_->with([&](World& world) { world.timeline().clear(); });
}

void Runtime::inject(Injection const& injection) {
  state_->with([&](World& world) { world.faults().add(injection); });
}

void Runtime::clear_injections() {
  state_->with([&](World& world) { world.faults().clear(); });
}

void Runtime::clear_error(int device) {
  state_->with([&](World& world) { world.clear_error(device); });
}

}  // namespace noria::sim

#include "support/stub_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>

namespace noria::stub {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr std::size_t kMostDevices = 8;

struct StreamState {
  std::deque<std::function<void()>> work;
  std::int64_t given = 0;
  std::int64_t done = 0;
};

struct EventState {
  c10::DeviceIndex device = 0;
  c10::StreamId stream = 0;
  std::int64_t position = 0;
  double seconds = 0.0;
};

struct Memory {
  Bytes allocated = 0;
  Bytes peak = 0;
};

struct State {
  std::recursive_mutex mutex;
  Settings settings;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, StreamState> streams;
  std::array<Memory, kMostDevices> memory;
  std::map<void*, std::pair<c10::DeviceIndex, Bytes>> blocks;
  std::map<std::byte const*, Bytes> pinned;
  std::array<at::Generator, kMostDevices> generators;
  std::atomic<c10::StreamId> last_stream{0};
  std::int64_t host_syncs = 0;
  std::int64_t operator_copies = 0;
  std::int64_t emptied_caches = 0;
  double clock = 0.0;
};

State& state() {
  static auto* const instance = new State;
  return *instance;
}

thread_local c10::DeviceIndex current = 0;
thread_local std::map<c10::DeviceIndex, c10::StreamId> current_streams;

c10::Device device_at(c10::DeviceIndex index) { return {kType, index}; }

StreamState& stream_state(c10::DeviceIndex device, c10::StreamId id) { return state().streams[{device, id}]; }

void run_until(c10::DeviceIndex device, c10::StreamId id, std::int64_t position) {
  std::scoped_lock const lock(state().mutex);
  auto& stream = stream_state(device, id);
  while (stream.done < position && !stream.work.empty()) {
    auto const work = std::move(stream.work.front());
    stream.work.pop_front();
    work();
    ++stream.done;
  }
}

void run_all(c10::DeviceIndex device) {
  std::scoped_lock const lock(state().mutex);
  std::vector<c10::StreamId> ids;
  for (auto const& [key, stream] : state().streams) {
    if (key.first == device) {
      ids.push_back(key.second);
    }
  }
  for (auto const id : ids) {
    run_until(device, id, stream_state(device, id).given);
  }
}

void enqueue(c10::Stream stream, std::function<void()> work) {
  std::scoped_lock const lock(state().mutex);
  auto& queue = stream_state(stream.device_index(), stream.id());
  queue.work.push_back(std::move(work));
  ++queue.given;
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto const before = device_at(current);
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return device_at(current); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < deviceCount(), "stub: no device ", device.index());
    current = device.has_index() ? device.index() : current;
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    auto const index = device.has_index() ? device.index() : current;
    return c10::Stream(c10::Stream::UNSAFE, device_at(index), current_streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    TORCH_CHECK(state().settings.default_stream, "stub: no default stream");
    return c10::Stream(c10::Stream::UNSAFE, device_at(device.has_index() ? device.index() : current), 0);
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    TORCH_CHECK(!state().settings.stream_pool_only, "stub: no new streams, only the pool's");
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    auto const index = device.has_index() ? device.index() : current;
    auto const id = state().settings.streams ? ++state().last_stream : 0;
    return c10::Stream(c10::Stream::UNSAFE, device_at(index), id);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto const before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(state().settings.devices);
  }
  void record(void** event, c10::Stream const& stream, c10::DeviceIndex /*index*/, c10::EventFlag flag) const override {
    TORCH_CHECK(state().settings.events, "stub: no events");
    TORCH_CHECK(flag != c10::EventFlag::BACKEND_DEFAULT || state().settings.timing, "stub: events carry no time");
    std::scoped_lock const lock(state().mutex);
    if (*event == nullptr) {
      *event = new EventState;
    }
    state().clock += 0.25;
    *static_cast<EventState*>(*event) = {stream.device_index(), stream.id(),
                                         stream_state(stream.device_index(), stream.id()).given, state().clock};
  }
  void block(void* event, c10::Stream const& stream) const override {
    auto const& mark = *static_cast<EventState*>(event);
    if (mark.device == stream.device_index() && mark.stream == stream.id()) {
      return;
    }
    enqueue(stream, [mark] { run_until(mark.device, mark.stream, mark.position); });
  }
  bool queryEvent(void* event) const override {
    std::scoped_lock const lock(state().mutex);
    auto const& mark = *static_cast<EventState*>(event);
    return stream_state(mark.device, mark.stream).done >= mark.position;
  }
  void synchronizeEvent(void* event) const override {
    std::scoped_lock const lock(state().mutex);
    ++state().host_syncs;
    auto const& mark = *static_cast<EventState*>(event);
    run_until(mark.device, mark.stream, mark.position);
  }
  void destroyEvent(void* event, c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<EventState*>(event);
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex /*index*/) const override {
    return (static_cast<EventState*>(second)->seconds - static_cast<EventState*>(first)->seconds) * 1e3;
  }
  bool isStreamCapturing(c10::Stream const& /*stream*/) const override { return state().settings.capturing; }
  bool queryStream(c10::Stream const& stream) const override { return pending(stream) == 0; }
  void synchronizeStream(c10::Stream const& stream) const override {
    TORCH_CHECK(state().settings.synchronize_stream, "stub: a stream cannot be waited for, only an event");
    std::scoped_lock const lock(state().mutex);
    ++state().host_syncs;
    run_until(stream.device_index(), stream.id(), stream_state(stream.device_index(), stream.id()).given);
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    TORCH_CHECK(state().settings.synchronize_device, "stub: no device synchronize");
    std::scoped_lock const lock(state().mutex);
    ++state().host_syncs;
    run_all(index < 0 ? current : index);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  static void release(void* raw) {
    std::scoped_lock const lock(state().mutex);
    auto const block = state().blocks.extract(raw);
    if (!block.empty()) {
      state().memory.at(static_cast<std::size_t>(block.mapped().first)).allocated -= block.mapped().second;
      std::free(raw);
    }
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, device_at(current)};
    }
    std::scoped_lock const lock(state().mutex);
    auto& memory = state().memory.at(static_cast<std::size_t>(current));
    TORCH_CHECK_WITH(OutOfMemoryError, memory.allocated + bytes <= state().settings.capacity, "stub: out of memory, ",
                     bytes, " bytes");
    auto const shift = state().settings.misalign;
    void* const raw = std::aligned_alloc(512, align_up(bytes + shift, 512));
    state().blocks[raw] = {current, bytes};
    memory.allocated += bytes;
    memory.peak = std::max(memory.peak, memory.allocated);
    return {static_cast<std::byte*>(raw) + shift, raw, &release, device_at(current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, void const* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override { ++state().emptied_caches; }
  void recordStream(c10::DataPtr const& /*memory*/, c10::Stream /*stream*/) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    TORCH_CHECK(state().settings.device_allocator, "stub: the allocator keeps no statistics");
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& bytes = stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    auto const& memory = state().memory.at(static_cast<std::size_t>(device));
    bytes.current = static_cast<std::int64_t>(memory.allocated);
    bytes.peak = static_cast<std::int64_t>(memory.peak);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    auto& memory = state().memory.at(static_cast<std::size_t>(device));
    memory.peak = memory.allocated;
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    TORCH_CHECK_NOT_IMPLEMENTED(state().settings.memory_info, "stub: free memory is not known");
    auto const& memory = state().memory.at(static_cast<std::size_t>(device));
    return {state().settings.capacity - memory.allocated, state().settings.capacity};
  }
};

class PinnedMemory final : public c10::Allocator {
 public:
  static void release(void* raw) {
    std::scoped_lock const lock(state().mutex);
    state().pinned.erase(static_cast<std::byte*>(raw));
    std::free(raw);
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    std::scoped_lock const lock(state().mutex);
    TORCH_CHECK(bytes <= state().settings.capacity, "stub: cannot pin ", bytes, " bytes");
    void* const raw = std::aligned_alloc(64, align_up(std::max<std::size_t>(bytes, 1), 64));
    state().pinned[static_cast<std::byte*>(raw)] = bytes;
    return {raw, raw, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, void const* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

DeviceMemory& device_memory() {
  static auto* const instance = new DeviceMemory;
  return *instance;
}

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return state().settings.devices > 0; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(state().settings.devices); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current = device; }
  bool isPinnedPtr(void const* data) const override {
    std::scoped_lock const lock(state().mutex);
    auto const* const address = static_cast<std::byte const*>(data);
    auto const after = state().pinned.upper_bound(address);
    if (!state().settings.pin_is_real || after == state().pinned.begin()) {
      return false;
    }
    auto const& [begin, bytes] = *std::prev(after);
    return address < begin + std::max<Bytes>(bytes, 1);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    TORCH_CHECK(state().settings.pin, "stub: no pinned memory");
    static auto* const instance = new PinnedMemory;
    return instance;
  }
  at::Generator const& getDefaultGenerator(c10::DeviceIndex device) const override {
    TORCH_CHECK(state().settings.generator, "stub: no generator");
    auto& generator = state().generators.at(static_cast<std::size_t>(device < 0 ? current : device));
    if (!generator.defined()) {
      generator = at::make_generator<at::CPUGeneratorImpl>();
    }
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex /*device*/) const override {
    return at::make_generator<at::CPUGeneratorImpl>();
  }
  at::Device getDeviceFromPtr(void* /*data*/) const override { return device_at(current); }
};

at::Tensor empty_memory_format(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                               std::optional<bool> /*pin*/, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard const here(device.value_or(device_at(current)));
  return at::detail::empty_generic_symint(size, &device_memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                          at::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                         std::optional<bool> /*pin*/) {
  c10::DeviceGuard const here(device.value_or(device_at(current)));
  return at::detail::empty_strided_symint_generic(
      size, stride, &device_memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), at::dtype_or_default(dtype));
}

// Contiguous bytes only: what the backend's raw copies and .to() of plain tensors need.
at::Tensor copy_from(at::Tensor const& from, at::Tensor const& to, bool non_blocking) {
  TORCH_CHECK(from.is_contiguous() && to.is_contiguous() && from.nbytes() == to.nbytes(), "stub: plain copies only");
  auto const device = to.device().type() == kType ? to.device() : from.device();
  auto const stream = Guard().getStream(device);
  {
    std::scoped_lock const lock(state().mutex);
    ++state().operator_copies;
  }
  enqueue(stream, [source = from.const_data_ptr(), target = to.mutable_data_ptr(), bytes = to.nbytes()] {
    std::memcpy(target, source, bytes);
  });
  if (!non_blocking) {
    std::scoped_lock const lock(state().mutex);
    ++state().host_syncs;
    run_until(stream.device_index(), stream.id(), stream_state(stream.device_index(), stream.id()).given);
  }
  return to;
}

// Lets `parameter.data = tensor` go from cpu to the device and back.
bool has_compatible_shallow_copy_type(at::Tensor const& /*self*/, at::Tensor const& /*from*/) { return true; }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
}

}  // namespace

Settings& settings() { return state().settings; }

void install(std::string const& name) {
  static bool const once = [&name] {
    c10::register_privateuse1_backend(name);
    c10::SetAllocator(kType, &device_memory());
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
  }();
  (void)once;
  state().settings = {};
}

std::int64_t host_syncs() { return state().host_syncs; }
std::int64_t operator_copies() { return state().operator_copies; }
std::int64_t pending(c10::Stream stream) {
  std::scoped_lock const lock(state().mutex);
  auto const& queue = stream_state(stream.device_index(), stream.id());
  return queue.given - queue.done;
}
c10::DeviceIndex current_device() { return current; }
Bytes allocated(c10::DeviceIndex device) { return state().memory.at(static_cast<std::size_t>(device)).allocated; }
std::int64_t emptied_caches() { return state().emptied_caches; }
std::size_t pinned_blocks() { return state().pinned.size(); }
void enqueue_write(c10::Stream stream, int* target, int value) {
  enqueue(stream, [target, value] { *target = value; });
}

}  // namespace noria::stub

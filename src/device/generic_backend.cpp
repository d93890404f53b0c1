#include "device/generic_backend.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <noria/error.h>

#include <algorithm>
#include <array>
#include <bit>

#include "device/out_of_memory.h"
#include "device/raw_copy.h"
#include "device/torch_event.h"

namespace noria {
namespace {

constexpr Bytes kDeviceAlignment = 512;
constexpr Bytes kHostAlignment = 64;

bool aligned(void const* address, Bytes alignment) {
  return reinterpret_cast<std::uintptr_t>(address) % alignment == 0;
}

// A hooks class may lack init(), and the flag it sets is all we are after.
void initialize(c10::DeviceType type) noexcept {
  try {
    at::globalContext().lazyInitDevice(type);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the calls that need it say so themselves
  }
}

c10::Device with_index(c10::Device device) {
  if (device.has_index() || count_devices(device.type()) == 0) {
    return device;
  }
  initialize(device.type());
  auto const current = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  return {device.type(), current.has_index() ? current.index() : c10::DeviceIndex{0}};
}

constexpr auto kAggregate = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

Bytes to_bytes(std::int64_t count) { return count > 0 ? static_cast<Bytes>(count) : 0; }

// Types that a kind of device cannot compute with. Source: the tables by which Diffusers 0.42 chooses its dtypes
// (diffusers/utils/torch_utils.py), for devices that do not describe themselves (getDeviceCapability).
using TypeOfDevice = std::pair<std::string_view, std::string_view>;
constexpr std::array kMissingTypes{TypeOfDevice{"mps", "float64"},    TypeOfDevice{"mps", "int64"},
                                   TypeOfDevice{"npu", "float64"},    TypeOfDevice{"npu", "int64"},
                                   TypeOfDevice{"neuron", "float64"}, TypeOfDevice{"neuron", "int64"}};

}  // namespace

int count_devices(c10::DeviceType type) noexcept {
  if (!c10::impl::hasDeviceGuardImpl(type)) {
    return 0;
  }
  return c10::impl::getDeviceGuardImpl(type)->deviceCount();
}

std::vector<std::string> missing_types(std::string_view device_type) {
  std::vector<std::string> missing;
  for (auto const& [type, dtype] : kMissingTypes) {
    if (type == device_type) {
      missing.emplace_back(dtype);
    }
  }
  return missing;
}

std::string type_name(c10::DeviceType type) { return c10::DeviceTypeName(type, /*lower_case=*/true); }

GenericBackend::GenericBackend(c10::Device device)
    : DeviceBackend(with_index(device)), guard_([&device] {
        auto const name = type_name(device.type());
        auto const count = count_devices(device.type());
        if (count == 0) {
          std::string usable;
          for (auto const type : usable_types()) {
            usable += (usable.empty() ? "" : ", ") + type_name(type);
          }
          throw std::invalid_argument("device '" + device.str() + "' cannot be used: PyTorch sees no " + name +
                                      " device here. Usable: " + usable);
        }
        if (device.has_index() && device.index() >= count) {
          auto const range =
              count == 1 ? name + ":0 is the only one" : name + ":0 to " + name + ":" + std::to_string(count - 1);
          throw std::invalid_argument("device '" + device.str() + "' cannot be used: there " +
                                      (count == 1 ? std::string("is 1 ") : "are " + std::to_string(count) + " ") +
                                      name + (count == 1 ? " device, " : " devices, ") + range);
        }
        return c10::impl::VirtualGuardImpl(device.type());
      }()) {
  initialize(device.type());
}

int GenericBackend::device_count() const { return guard_.deviceCount(); }

int GenericBackend::current_device() const { return guard_.getDevice().index(); }

int GenericBackend::set_current_device() { return guard_.exchangeDevice(device()).index(); }

void GenericBackend::restore_current_device(int index) {
  if (index >= 0) {
    guard_.setDevice({device().type(), static_cast<c10::DeviceIndex>(index)});
  }
}

void GenericBackend::require(bool Capabilities::* capability, std::string_view operation) {
  if (capabilities().*capability) {
    return;
  }
  for (auto const& [name, field] : capability_fields()) {
    if (field == capability) {
      unsupported(operation, why_not(name));
    }
  }
}

void GenericBackend::check_stream(c10::Stream stream) const {
  NORIA_CHECK(stream.device() == device(), std::invalid_argument,
              "the stream belongs to " + stream.device().str() + ", and this is the backend of " + device().str());
}

c10::Stream GenericBackend::current_stream() { return guard_.getStream(device()); }

c10::Stream GenericBackend::default_stream() {
  if (names_default_stream_) {
    try {
      return guard_.getDefaultStream(device());
    } catch (c10::Error const&) {
      names_default_stream_ = false;
    }
  }
  return current_stream();
}

// Newer backends hand out streams by getNewStream, older ones only from the global pool.
c10::Stream GenericBackend::make_stream(int priority) {
  c10::DeviceGuard const here(device());
  try {
    return guard_.getNewStream(device(), priority);
  } catch (c10::Error const&) {
    return guard_.getStreamFromGlobalPool(device(), priority < 0);
  }
}

c10::Stream GenericBackend::new_stream(int priority) {
  require(&Capabilities::streams, "new_stream");
  return make_stream(priority);
}

c10::Stream GenericBackend::set_current_stream(c10::Stream stream) {
  check_stream(stream);
  return guard_.exchangeStream(stream);
}

Event GenericBackend::new_event(bool timing) {
  require(timing ? &Capabilities::event_timing : &Capabilities::events, "new_event");
  return Event(std::make_unique<TorchEvent>(device().type(), timing));
}

c10::DataPtr GenericBackend::allocate(Bytes bytes) {
  c10::DeviceGuard const here(device());
  auto* const allocator = c10::GetAllocator(device().type());
  if (allocator_aligns_) {
    auto memory = allocator->allocate(bytes);
    if (aligned(memory.get(), kDeviceAlignment)) {
      return memory;
    }
    allocator_aligns_ = false;
  }
  auto owner = std::make_unique<c10::DataPtr>(allocator->allocate(bytes + kDeviceAlignment - 1));
  auto const address = align_up(reinterpret_cast<std::uintptr_t>(owner->get()), kDeviceAlignment);
  auto const where = owner->device();
  return {reinterpret_cast<void*>(address),  // NOLINT(performance-no-int-to-ptr): it was a pointer
          owner.release(), [](void* held) { delete static_cast<c10::DataPtr*>(held); }, where};
}

PinnedBlock GenericBackend::allocate_pinned(Bytes bytes) {
  require(&Capabilities::pinned_memory, "allocate_pinned");
  if (bytes == 0) {
    return {};
  }
  c10::DeviceGuard const here(device());
  auto owner = std::make_shared<c10::DataPtr>();
  try {
    *owner = at::globalContext().getPinnedMemoryAllocator(device().type())->allocate(bytes);
  } catch (std::exception const& error) {
    throw Error("cannot pin " + format_bytes(bytes) + " of host memory for " + device().str() + ": " +
                first_line(error) + ". Pin less (pin=False or a smaller host_budget), or free host memory");
  }
  auto* const data = static_cast<std::byte*>(owner->get());
  NORIA_CHECK(
      data != nullptr && aligned(data, kHostAlignment), Error,
      "the pinned memory of " + device().str() + " is not aligned to " + std::to_string(kHostAlignment) + " bytes");
  return {data, bytes, std::bit_ceil(bytes), [owner](void*) { owner->clear(); }};
}

bool GenericBackend::is_pinned(void const* host) { return at::globalContext().isPinnedPtr(host, device().type()); }

c10::DeviceAllocator* GenericBackend::caching_allocator() const {
  // c10::getDeviceAllocator asserts where there is none; the cast just says so.
  try {
    return dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device().type()));
  } catch (c10::Error const&) {
    return nullptr;
  }
}

void GenericBackend::empty_cache() {
  if (!capabilities().caching_allocator) {
    return;
  }
  c10::DeviceGuard const here(device());
  caching_allocator()->emptyCache();
}

Bytes GenericBackend::memory_allocated() {
  require(&Capabilities::memory_stats, "memory_allocated");
  return to_bytes(caching_allocator()->getDeviceStats(device().index()).allocated_bytes[kAggregate].current);
}

Bytes GenericBackend::max_memory_allocated() {
  require(&Capabilities::memory_stats, "max_memory_allocated");
  return to_bytes(caching_allocator()->getDeviceStats(device().index()).allocated_bytes[kAggregate].peak);
}

void GenericBackend::reset_peak_memory_stats() {
  require(&Capabilities::memory_stats, "reset_peak_memory_stats");
  caching_allocator()->resetPeakStats(device().index());
}

MemoryInfo GenericBackend::mem_get_info() {
  require(&Capabilities::memory_info, "mem_get_info");
  c10::DeviceGuard const here(device());
  auto const [free_bytes, total_bytes] = caching_allocator()->getMemoryInfo(device().index());
  return {free_bytes, total_bytes};
}

void GenericBackend::copy_to_device(void* device_dst, void const* host_src, Bytes bytes, c10::Stream stream) {
  check_stream(stream);
  if (bytes == 0) {
    return;
  }
  // From pageable memory some devices return early too, and then read what the caller has already changed.
  bool const asynchronous = capabilities().async_copies && is_pinned(host_src);
  raw_copy({device_dst, device()}, {const_cast<void*>(host_src), c10::kCPU}, bytes, stream, asynchronous);
}

void GenericBackend::copy_to_host(void* host_dst, void const* device_src, Bytes bytes, c10::Stream stream) {
  check_stream(stream);
  if (bytes == 0) {
    return;
  }
  bool const asynchronous = capabilities().async_copies && is_pinned(host_dst);
  raw_copy({host_dst, c10::kCPU}, {const_cast<void*>(device_src), device()}, bytes, stream, asynchronous);
}

void GenericBackend::copy_on_device(void* dst, void const* src, Bytes bytes, c10::Stream stream) {
  check_stream(stream);
  if (bytes != 0) {
    raw_copy({dst, device()}, {const_cast<void*>(src), device()}, bytes, stream, true);
  }
}

void GenericBackend::fill(void* device_dst, int byte, Bytes bytes, c10::Stream stream) {
  check_stream(stream);
  if (bytes != 0) {
    raw_fill(device_dst, byte, bytes, stream);
  }
}

void GenericBackend::synchronize() {
  c10::DeviceGuard const here(device());
  try {
    guard_.synchronizeDevice(device().index());
  } catch (c10::Error const& error) {
    // A device without that call but with one queue is done when an event on the queue is.
    if (capabilities().streams || !capabilities().events) {
      unsupported("synchronize", first_line(error));
    }
    synchronize(current_stream());
  }
}

void GenericBackend::synchronize(c10::Stream stream) {
  check_stream(stream);
  if (!capabilities().events) {
    synchronize();
    return;
  }
  // Not synchronizeStream: mps throws there.
  c10::Event event(device().type(), c10::EventFlag::PYTORCH_DEFAULT);
  event.record(stream);
  event.synchronize();
}

void GenericBackend::manual_seed(std::uint64_t seed) {
  require(&Capabilities::generator, "manual_seed");
  auto generator = at::globalContext().defaultGenerator(device());
  std::scoped_lock const lock(generator.mutex());
  generator.set_current_seed(seed);
}

at::Tensor GenericBackend::rng_state() {
  require(&Capabilities::generator, "get_rng_state");
  auto generator = at::globalContext().defaultGenerator(device());
  std::scoped_lock const lock(generator.mutex());
  return generator.get_state();
}

void GenericBackend::set_rng_state(at::Tensor const& state) {
  require(&Capabilities::generator, "set_rng_state");
  auto generator = at::globalContext().defaultGenerator(device());
  std::scoped_lock const lock(generator.mutex());
  generator.set_state(state);
}

bool GenericBackend::is_out_of_memory(std::exception const& error) const {
  if (dynamic_cast<c10::OutOfMemoryError const*>(&error) != nullptr ||
      says_out_of_memory(type_name(device().type()), error.what())) {
    return true;
  }
  try {
    std::rethrow_if_nested(error);
  } catch (std::exception const& nested) {
    return is_out_of_memory(nested);
  } catch (...) {
    return false;
  }
  return false;
}

}  // namespace noria

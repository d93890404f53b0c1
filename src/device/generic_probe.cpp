// What a device offers, found out by trying. See DeviceBackend::capabilities().
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include "device/generic_backend.h"
#include "device/torch_event.h"

namespace noria {

DeviceBackend::Probe GenericBackend::probe() {
  Probe found;
  probe_streams(found);
  probe_events(found);
  probe_memory(found);
  probe_types(found);
  if (!found.on.streams || !found.on.events || !found.on.pinned_memory) {
    found.off("async_copies", "it needs streams, events and pinned memory together");
  } else {
    found.on.async_copies = true;
  }
  return found;
}

void GenericBackend::probe_streams(Probe& found) {
  try {
    auto const stream = make_stream(0);
    found.on.streams = stream != default_stream();
    if (found.on.streams) {
      // A stream that cannot be made current is of no use.
      auto const before = guard_.exchangeStream(stream);
      found.on.streams = guard_.getStream(device()) == stream;
      guard_.exchangeStream(before);
    }
    if (!found.on.streams) {
      found.off("streams", "a new stream is the default stream");
    }
  } catch (std::exception const& error) {
    found.off("streams", first_line(error));
  }
}

void GenericBackend::probe_events(Probe& found) {
  try {
    TorchEvent event(device().type(), false);
    event.record(current_stream());
    event.block(current_stream());
    event.synchronize();
    found.on.events = event.query();
    if (!found.on.events) {
      found.off("events", "an event that was waited for says it is not done");
    }
  } catch (std::exception const& error) {
    found.off("events", first_line(error));
  }
  try {
    TorchEvent first(device().type(), true);
    TorchEvent second(device().type(), true);
    first.record(current_stream());
    second.record(current_stream());
    first.synchronize();
    second.synchronize();
    found.on.event_timing = first.elapsed_seconds(second) >= 0.0;
    if (!found.on.event_timing) {
      found.off("event_timing", "the time between two events is negative");
    }
  } catch (std::exception const& error) {
    found.off("event_timing", first_line(error));
  }
}

void GenericBackend::probe_memory(Probe& found) {
  found.off("host_register", "no call to page-lock existing memory is known for " + type_name(device().type()));
  found.off("unified_memory", "the device has memory of its own, or does not say");
  c10::DeviceGuard const here(device());
  try {
    constexpr Bytes kSample = 4096;
    auto const sample = at::globalContext().getPinnedMemoryAllocator(device().type())->allocate(kSample);
    // Where pinning is a no-op the memory is there and not pinned (intel/llm-scaler#556).
    found.on.pinned_memory = sample.get() != nullptr && is_pinned(sample.get());
    if (!found.on.pinned_memory) {
      found.off("pinned_memory", "memory from its pinned allocator is not page-locked");
    }
  } catch (std::exception const& error) {
    found.off("pinned_memory", first_line(error));
  }
  auto* const allocator = caching_allocator();
  if (allocator == nullptr) {
    std::string const reason = "its allocator is not a c10::DeviceAllocator";
    found.off("caching_allocator", reason);
    found.off("memory_stats", reason);
    found.off("memory_info", reason);
    return;
  }
  found.on.caching_allocator = true;
  try {
    (void)allocator->getDeviceStats(device().index());
    found.on.memory_stats = true;
  } catch (std::exception const& error) {
    found.off("memory_stats", first_line(error));
  }
  try {
    found.on.memory_info = allocator->getMemoryInfo(device().index()).second != 0;
    if (!found.on.memory_info) {
      found.off("memory_info", "it says its total memory is 0");
    }
  } catch (std::exception const& error) {
    found.off("memory_info", first_line(error));
  }
}

void GenericBackend::probe_types(Probe& found) {
  try {
    found.on.generator = at::globalContext().defaultGenerator(device()).defined();
    if (!found.on.generator) {
      found.off("generator", "its default generator is undefined");
    }
  } catch (std::exception const& error) {
    found.off("generator", first_line(error));
  }
  auto const name = type_name(device().type());
  found.on.float64 = found.on.int64 = found.on.bfloat16 = true;
  try {
    c10::DeviceGuard const here(device());
    auto const bits = guard_.getDeviceCapability(device()).capability_data.capability_bits;
    auto const has = [bits](c10::ScalarTypeIndex type) { return (bits >> static_cast<unsigned>(type) & 1U) != 0; };
    found.on.float64 = has(c10::kIndex_Double);
    found.on.int64 = has(c10::kIndex_Long);
    found.on.bfloat16 = has(c10::kIndex_BFloat16);
  } catch (std::exception const&) {
    for (auto const& dtype : missing_types(name)) {
      found.off(dtype, name + " does not compute with it");
    }
  }
  for (auto const& [dtype, on] :
       {std::pair{"float64", found.on.float64}, {"int64", found.on.int64}, {"bfloat16", found.on.bfloat16}}) {
    if (!on) {
      found.off(dtype, name + " does not compute with it");
    }
  }
}

}  // namespace noria

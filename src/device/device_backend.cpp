#include <c10/util/Exception.h>
#include <noria/device_backend.h>
#include <noria/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <stdexcept>

#include "device/builtin_backends.h"
#include "device/generic_backend.h"

namespace noria {
namespace {

using Field = std::pair<std::string_view, bool Capabilities::*>;

constexpr std::array kFields{
    Field{"streams", &Capabilities::streams},
    Field{"events", &Capabilities::events},
    Field{"event_timing", &Capabilities::event_timing},
    Field{"async_copies", &Capabilities::async_copies},
    Field{"pinned_memory", &Capabilities::pinned_memory},
    Field{"host_register", &Capabilities::host_register},
    Field{"caching_allocator", &Capabilities::caching_allocator},
    Field{"memory_stats", &Capabilities::memory_stats},
    Field{"memory_info", &Capabilities::memory_info},
    Field{"unified_memory", &Capabilities::unified_memory},
    Field{"generator", &Capabilities::generator},
    Field{"float64", &Capabilities::float64},
    Field{"int64", &Capabilities::int64},
    Field{"bfloat16", &Capabilities::bfloat16},
};

// Which of several devices a user without a wish means. PrivateUse1 is a vendor's plug-in, or the simulated device.
constexpr std::array kPreference{
    c10::DeviceType::CUDA, c10::DeviceType::HIP,         c10::DeviceType::XPU, c10::DeviceType::HPU,
    c10::DeviceType::MTIA, c10::DeviceType::PrivateUse1, c10::DeviceType::MPS,
};

struct Registry {
  std::mutex mutex;
  std::map<c10::DeviceType, DeviceBackend::Factory> factories = builtin_factories();
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::unique_ptr<DeviceBackend>> backends;
  std::vector<std::unique_ptr<DeviceBackend>> replaced;  // someone may still hold a reference
};

// Leaked: at process exit a device's driver may be gone before our destructors would run.
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

}  // namespace

std::span<std::pair<std::string_view, bool Capabilities::*> const> capability_fields() { return kFields; }

void Event::record(c10::Stream stream) {
  NORIA_CHECK(handle_, Error, "this event was moved from, or never made by DeviceBackend::new_event");
  handle_->record(stream);
  recorded_ = true;
}

void Event::block(c10::Stream stream) const {
  if (recorded_) {
    handle_->block(stream);
  }
}

bool Event::query() const { return !recorded_ || handle_->query(); }

void Event::synchronize() const {
  if (recorded_) {
    handle_->synchronize();
  }
}

double Event::elapsed_seconds(Event const& later) const {
  NORIA_CHECK(recorded_ && later.recorded_, std::invalid_argument,
              "the time between two events needs both recorded; record them with new_event(/*timing=*/true)");
  return handle_->elapsed_seconds(*later.handle_);
}

void PinnedBlock::swap(PinnedBlock& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(booked_, other.booked_);
  std::swap(release_, other.release_);
}

PinnedBlock& PinnedBlock::operator=(PinnedBlock&& other) noexcept {
  if (this != &other) {
    reset();
    swap(other);
  }
  return *this;
}

void PinnedBlock::reset() noexcept {
  if (data_ != nullptr && release_) {
    release_(data_);
  }
  data_ = nullptr;
  size_ = booked_ = 0;
  release_ = nullptr;
}

void DeviceBackend::Probe::off(std::string_view capability, std::string reason) {
  for (auto const& [name, field] : kFields) {
    if (name == capability) {
      on.*field = false;
      std::erase_if(reasons, [name = name](auto const& entry) { return entry.first == name; });
      reasons.emplace_back(name, std::move(reason));
      return;
    }
  }
  NORIA_ASSERT(false, "no capability " + std::string(capability));
}

DeviceBackend& DeviceBackend::get(c10::Device device) {
  auto& known = registry();
  DeviceBackend::Factory factory;
  {
    std::scoped_lock const lock(known.mutex);
    if (auto const found = known.backends.find({device.type(), device.index()}); found != known.backends.end()) {
      if (device.has_index() || !found->second->device().has_index()) {
        return *found->second;
      }
    }
    auto const registered = known.factories.find(device.type());
    factory = registered != known.factories.end() ? registered->second : generic_factory();
  }
  // Outside the lock: a factory may ask for another backend.
  auto made = factory(device);
  NORIA_CHECK(made, Error, "the factory of " + device.str() + " made no backend");
  std::scoped_lock const lock(known.mutex);
  auto const key = std::pair(made->device().type(), made->device().index());
  auto& kept = known.backends[key];
  if (!kept) {
    kept = std::move(made);
  }
  return *kept;
}

void DeviceBackend::write_pinned(void* pinned_dst, void const* host_src, Bytes bytes) {
  std::memcpy(pinned_dst, host_src, bytes);
}

void DeviceBackend::register_backend(c10::DeviceType type, Factory factory) {
  NORIA_CHECK(factory, std::invalid_argument, "register_backend needs a factory for " + type_name(type));
  auto& known = registry();
  std::scoped_lock const lock(known.mutex);
  known.factories[type] = std::move(factory);
  for (auto entry = known.backends.begin(); entry != known.backends.end();) {
    if (entry->first.first == type) {
      known.replaced.push_back(std::move(entry->second));
      entry = known.backends.erase(entry);
    } else {
      ++entry;
    }
  }
}

std::vector<c10::DeviceType> DeviceBackend::usable_types() {
  std::vector<c10::DeviceType> usable;
  std::ranges::copy_if(kPreference, std::back_inserter(usable), [](auto type) { return count_devices(type) > 0; });
  usable.push_back(c10::DeviceType::CPU);
  return usable;
}

DeviceBackend::Probe const& DeviceBackend::probed() {
  std::call_once(probe_once_, [this] { probe_ = probe(); });
  return probe_;
}

Capabilities const& DeviceBackend::capabilities() { return probed().on; }

std::string DeviceBackend::why_not(std::string_view capability) {
  auto const field = std::ranges::find(kFields, capability, &Field::first);
  NORIA_CHECK(field != kFields.end(), std::invalid_argument,
              "no capability is named '" + std::string(capability) + "'");
  auto const& found = probed();
  if (found.on.*(field->second)) {
    return "";
  }
  auto const reason = std::ranges::find(found.reasons, capability, [](auto const& entry) { return entry.first; });
  return reason != found.reasons.end() ? reason->second : "the device does not offer it";
}

void DeviceBackend::unsupported(std::string_view operation, std::string_view reason) const {
  throw UnsupportedOperation(device_.str() + " does not support " + std::string(operation) + ": " +
                             std::string(reason));
}

}  // namespace noria

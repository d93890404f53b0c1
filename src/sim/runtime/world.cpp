#include "sim/runtime/world.h"

#include <fmt/format.h>
#include <noria/error.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace noria::sim {
namespace {

// Stamps keep a stream in 16 bits.
constexpr std::size_t kMostActors = 65535;

Prices prices_of(Profile const& profile) {
  Prices prices;
  prices.launch = nanoseconds(profile.launch_seconds);
  prices.kernel_floor = nanoseconds(profile.kernel_floor_seconds);
  prices.latency = nanoseconds(profile.copy_latency_seconds);
  prices.sync = nanoseconds(profile.host_sync_seconds);
  prices.event = nanoseconds(profile.event_seconds);
  prices.alloc = nanoseconds(profile.alloc_seconds);
  prices.per_byte = 1e9 / profile.memory_bytes_per_second;
  for (std::size_t i = 0; i < kComputeTypes; ++i) {
    prices.per_flop[i] = profile.flops[i] > 0 ? 1e9 / profile.flops[i] : 0;
  }
  return prices;
}

}  // namespace

Device::Device(int index, DeviceConfig const& config, Config const& all)
    : index(index),
      profile(config.profile),
      prices(prices_of(config.profile)),
      memory(index, config.memory_bytes != 0 ? config.memory_bytes : config.profile.capacity_bytes, all.dry,
             all.poison && !all.dry) {}

World::World(Config config) : config_(std::move(config)) {
  if (config_.devices.empty()) {
    throw std::invalid_argument("a simulated runtime needs at least one device");
  }
  if (config_.copy_engines != 1 && config_.copy_engines != 2) {
    throw std::invalid_argument(
        fmt::format("copy_engines is 1 (shared by both directions) or 2, not {}", config_.copy_engines));
  }
  actors_.emplace_back();
  actors_.front().ref = {-1, kHostStream};
  names_.emplace_back("unnamed");
  name_ids_.emplace(names_.back(), 0);
  for (std::size_t i = 0; i < config_.devices.size(); ++i) {
    devices_.push_back(std::make_unique<Device>(static_cast<int>(i), config_.devices[i], config_));
    Actor& actor = actors_.emplace_back();
    actor.ref = {static_cast<int>(i), 0};
    devices_.back()->streams.push_back(id_of(actor));
  }
}

Device& World::device(int index) {
  if (index < 0 || static_cast<std::size_t>(index) >= devices_.size()) {
    throw std::invalid_argument(fmt::format("there is no simulated device {}; there are {}", index, devices_.size()));
  }
  return *devices_[static_cast<std::size_t>(index)];
}

bool World::has_stream(StreamRef ref) const {
  return ref.device >= 0 && static_cast<std::size_t>(ref.device) < devices_.size() && ref.id >= 0 &&
         static_cast<std::size_t>(ref.id) < devices_[static_cast<std::size_t>(ref.device)]->streams.size();
}

Actor& World::stream(StreamRef ref) {
  if (!has_stream(ref)) [[unlikely]] {
    throw std::invalid_argument(fmt::format("there is no stream {} on simulated device {}", ref.id, ref.device));
  }
  return actors_[devices_[static_cast<std::size_t>(ref.device)]->streams[static_cast<std::size_t>(ref.id)]];
}

std::pair<std::uint64_t, Bytes> World::alive() const {
  std::uint64_t count = 0;
  Bytes bytes = 0;
  auto const add = [&](Block const& block) {
    if (block.state == BlockState::kLive) {
      ++count;
      bytes += block.asked;
    }
  };
  for (auto const& device : devices_) {
    device->memory.each_block(add);
  }
  if (pinned_) {
    pinned_->each_block(add);
  }
  foreign_.each_block(add);
  reserved_host_.each_block(add);
  return {count, bytes};
}

Nanoseconds World::device_clock(int device) const {
  Nanoseconds time = host_time_;
  for (ActorId const actor : this->device(device).streams) {
    time = std::max(time, actors_[actor].ready);
  }
  return time;
}

void World::advance_host(Nanoseconds time) {
  if (time < 0) {
    throw std::invalid_argument(fmt::format("time does not run backwards: advance_host({})", time));
  }
  host_time_ += time;
}

void World::reset_clocks() {
  for (std::size_t i = 1; i < actors_.size(); ++i) {
    observe(actors_[i].known);
  }
  for (Actor& actor : actors_) {
    actor.ready = 0;
  }
  for (auto const& device : devices_) {
    for (Engine& engine : device->engines) {
      engine.reset();
    }
  }
  for (auto& [id, event] : events_) {
    event.time = 0;
  }
  for (Deferred const& deferred : deferred_) {
    for (BlockUse& use : deferred.block->uses) {
      use.done = 0;
    }
  }
  host_time_ = 0;
}

StreamRef World::create_stream(int device, int priority) {
  if (!config_.streams) {
    throw UnsupportedOperation(
        fmt::format("simulated device {} is configured without streams (streams=False)", device));
  }
  auto& streams = this->device(device).streams;
  NORIA_CHECK(actors_.size() < kMostActors, Error, fmt::format("more than {} simulated streams", kMostActors));
  Actor& actor = actors_.emplace_back();
  actor.ref = {device, static_cast<std::int64_t>(streams.size())};
  actor.priority = priority;
  streams.push_back(id_of(actor));
  return actor.ref;
}

void World::raise_device_error(Device& device) {
  throw_deferred();
  if (device.error) {
    std::string const message = *device.error;
    if (!device.error_sticky) {
      device.error.reset();
    }
    throw SimDeviceError(message);
  }
}

void World::wait_until(Device& device, Nanoseconds time, std::string_view what) {
  Nanoseconds const begin = host_time_;
  host_time_ = std::max(host_time_, time) + device.prices.sync;
  ++device.stats.host_syncs;
  device.stats.host_wait += std::max(Nanoseconds{0}, time - begin);
  if (timeline_on_) {
    add_span(std::string(what), SpanKind::kHostSync, device.index, kHostStream, -1, {begin, host_time_}, 0);
  }
}

bool World::poll(Device& device, Nanoseconds time, VectorClock const& known) {
  host_time_ += std::max(Nanoseconds{1}, device.prices.event);
  ++device.stats.event_queries;
  if (time > host_time_) {
    return false;
  }
  observe(known);
  return true;
}

bool World::query_stream(StreamRef ref) {
  Actor& actor = stream(ref);
  return poll(device(ref.device), actor.ready, actor.known);
}

void World::synchronize_stream(StreamRef ref) {
  Actor& actor = stream(ref);
  Device& device = this->device(ref.device);
  wait_until(device, actor.ready, "synchronize stream");
  observe(actor.known);
  raise_device_error(device);
}

void World::synchronize_device(int index) {
  Device& device = this->device(index);
  Nanoseconds time = 0;
  for (ActorId const actor : device.streams) {
    time = std::max(time, actors_[actor].ready);
  }
  wait_until(device, time, "synchronize device");
  for (ActorId const actor : device.streams) {
    observe(actors_[actor].known);
  }
  raise_device_error(device);
}

void World::create_event(EventId id, int device, bool timing) {
  static_cast<void>(this->device(device));
  Event event;
  event.device = device;
  event.timing = timing;
  events_.emplace(id, std::move(event));
}

Event& World::event(EventId id) {
  auto const found = events_.find(id);
  if (found == events_.end()) {
    throw std::invalid_argument(fmt::format("there is no simulated event {}", id));
  }
  return found->second;
}

void World::record_event(EventId id, StreamRef ref) {
  Event& event = this->event(id);
  Actor& actor = stream(ref);
  Device& device = this->device(ref.device);
  host_time_ += device.prices.event;
  begin_operation(actor);
  event.device = ref.device;
  event.known = actor.known;
  event.time = std::max(actor.ready, host_time_);
  ++event.generation;
  ++device.stats.event_records;
}

void World::wait_event(EventId id, StreamRef ref) {
  Event& event = this->event(id);
  Actor& actor = stream(ref);
  Device& device = this->device(ref.device);
  host_time_ += device.prices.event;
  ++device.stats.event_waits;
  if (event.generation == 0) {
    if (!event.reported) {
      event.reported = true;
      Finding finding;
      finding.kind = FindingKind::kEventNeverRecorded;
      finding.op = "wait";
      finding.stream = ref.id;
      finding.device = ref.device;
      finding.text = fmt::format(
          "stream {} of device {} waits for an event that was never recorded: that orders nothing. Record it first.",
          ref.id, ref.device);
      findings_.push_back(std::move(finding));
    }
    return;
  }
  actor.known.merge(event.known);
  actor.ready = std::max(actor.ready, event.time);
}

bool World::query_event(EventId id) {
  Event const& event = this->event(id);
  return poll(device(event.device), event.generation == 0 ? 0 : event.time, event.known);
}

void World::synchronize_event(EventId id) {
  Event const& event = this->event(id);
  Device& device = this->device(event.device);
  wait_until(device, event.time, "synchronize event");
  observe(event.known);
  raise_device_error(device);
}

Nanoseconds World::elapsed(EventId begin, EventId end) const {
  for (EventId const id : {begin, end}) {
    Event const& event = this->event(id);
    NORIA_CHECK(event.timing, Error, "both events must be created with timing to measure the time between them");
    NORIA_CHECK(event.generation > 0, Error, "both events must be recorded before the time between them is measured");
    NORIA_CHECK(event.time <= host_time_, Error,
                "both events must be complete before the time between them is measured: synchronize with them first");
  }
  return event(end).time - event(begin).time;
}

void World::add_span(std::string name, SpanKind kind, int device, std::int64_t stream, int engine, Interval time,
                     Bytes bytes) {
  timeline_.push_back({std::move(name), kind, device, stream, engine, time.begin, time.end, bytes});
}

DeviceStats World::stats(int index) const {
  DeviceStats stats = device(index).stats;
  return stats;
}

void World::reset_stats(int index) {
  DeviceStats& stats = device(index).stats;
  DeviceStats fresh;
  fresh.allocated = fresh.peak_allocated = stats.allocated;
  fresh.reserved = fresh.peak_reserved = stats.reserved;
  stats = fresh;
}

void World::reset_peak_stats(int index) {
  DeviceStats& stats = device(index).stats;
  stats.peak_allocated = stats.allocated;
  stats.peak_reserved = stats.reserved;
}

}  // namespace noria::sim

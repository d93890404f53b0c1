// Who is ordered before whom, what that forbids, and when bytes move.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "sim/runtime/world.h"

namespace noria::sim {
namespace {

// A loop that races a million times shall not take the machine's memory.
constexpr std::size_t kMostReports = 10000;

std::uintptr_t address(void const* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

std::uint32_t World::intern(std::string_view name) {
  auto const found = name_ids_.find(name);
  if (found != name_ids_.end()) {
    return found->second;
  }
  auto const id = static_cast<std::uint32_t>(names_.size());
  names_.emplace_back(name);
  name_ids_.emplace(names_.back(), id);
  return id;
}

void World::learn_from_host(Actor& actor) {
  if (actor.host_version != host_version_) {
    actor.known.merge(actors_[kHostActor].known);
    actor.host_version = host_version_;
  }
}

Epoch World::begin_operation(Actor& actor) {
  learn_from_host(actor);
  actor.known.set(id_of(actor), ++actor.epoch);
  return actor.epoch;
}

Block* World::find(std::uintptr_t address) const {
  for (auto const& device : devices_) {
    if (device->memory.contains(address)) {
      return device->memory.find(address);
    }
  }
  if (pinned_ && pinned_->contains(address)) {
    return pinned_->find(address);
  }
  return foreign_.empty() ? nullptr : foreign_.find(address);
}

void World::resolve(Actor const& actor, std::string_view op, std::span<Range const> ranges, bool write) {
  for (Range const& range : ranges) {
    if (range.bytes == 0) {
      continue;
    }
    std::uintptr_t const begin = address(range.pointer);
    std::uintptr_t const end = begin + range.bytes;
    Block* const block = find(begin);
    bool const live = block != nullptr && block->state == BlockState::kLive;
    if (live && end <= block->begin + block->asked) [[likely]] {
      touches_.push_back({block, begin, end, write});
      continue;
    }
    if (live) {
      touches_.push_back({block, begin, std::min(end, block->end()), write});
    }
    // Host memory may be pinned in part, so a range that leaves a pinned block is no fault.
    if (checking() && !(live && block->device < 0)) {
      report_misuse(actor, op, {begin, end}, block, write);
    }
  }
}

void World::report_misuse(Actor const& actor, std::string_view op, std::pair<std::uintptr_t, std::uintptr_t> bytes,
                          Block const* block, bool write) {
  auto const [begin, end] = bytes;
  std::optional<int> device = block != nullptr ? std::optional(block->device) : std::nullopt;
  bool handed_out = block != nullptr;
  for (std::size_t i = 0; i < devices_.size() && !device; ++i) {
    if (devices_[i]->memory.contains(begin)) {
      device = static_cast<int>(i);
      handed_out = devices_[i]->memory.was_taken(begin);
    }
  }
  if (!device) {
    return;
  }
  std::string const what = fmt::format("'{}' {} [{:#x}, {:#x}) of {}", op, write ? "writes" : "reads", begin, end,
                                       *device < 0 ? "pinned host memory" : fmt::format("device {}", *device));
  Finding finding;
  finding.op = op;
  finding.stream = actor.ref.id;
  finding.device = *device;
  finding.begin = begin;
  finding.end = end;
  if (block != nullptr && block->state == BlockState::kLive) {
    finding.kind = FindingKind::kOutOfBounds;
    finding.text = fmt::format("out of bounds: {}, but its block ends at {:#x}", what, block->begin + block->asked);
  } else if (handed_out) {
    finding.kind = FindingKind::kUseAfterFree;
    finding.text = fmt::format(
        "use after free: {}, which no live block holds. Keep the block until the work that uses it was issued.", what);
  } else {
    finding.kind = FindingKind::kUnknownMemory;
    finding.text = fmt::format("unknown memory: {}, which was never handed out", what);
  }
  report(std::move(finding), true);
}

void World::check_touches(Actor const& actor, std::string_view op) {
  for (Touch const& touch : touches_) {
    auto const conflict = touch.block->accesses.find_conflict(touch.begin, touch.end, touch.write, actor.known);
    if (conflict) [[unlikely]] {
      report(race_of(*conflict, touch.block->device, {std::string(op), actor.ref.id, touch.write, actor.ref.device}),
             true);
    }
  }
}

void World::settle_touches(Actor const& actor, std::uint32_t op, Epoch epoch) {
  for (Touch const& touch : touches_) {
    if (!touch.block->pending.empty()) {
      land_needed(*touch.block, touch.begin, touch.end, touch.write, actor.known);
    }
    if (checking()) {
      touch.block->accesses.add(touch.begin, touch.end, {epoch, op, id_of(actor), touch.write}, actor.known);
    }
  }
}

void World::land_needed(Block& block, std::uintptr_t begin, std::uintptr_t end, bool write, VectorClock const& known) {
  for (auto const& copy : block.pending) {
    if (!copy->landed && known.knows(copy->actor, copy->epoch) &&
        (copy->writes(begin, end) || (write && copy->reads(begin, end)))) {
      land(*copy);
    }
  }
  block.drop_landed();
}

void World::land(PendingCopy& copy) {
  copy.landed = true;
  --pending_copies_;
  if (copy.failed) {
    return;
  }
  if (copy.hashed && hash_bytes(copy.source, copy.bytes) != copy.source_hash) {
    Conflict const conflict{{copy.epoch, copy.op, copy.actor, false}, copy.source, copy.source + copy.bytes};
    Race race = race_of(conflict, -1, {"host write", kHostStream, true, -1});
    race.missing_wait = fmt::format(
        "The host changed the source before the copy had completed: it must synchronize with an event recorded on "
        "stream {} of device {} after '{}' first.",
        race.first.stream, race.first.device, race.first.op);
    report(std::move(race), false);
  }
  if (copy.guards_destination && !is_poison(copy.destination, copy.bytes)) {
    Conflict const conflict{{copy.epoch, copy.op, copy.actor, true}, copy.destination, copy.destination + copy.bytes};
    Race race = race_of(conflict, -1, {"host write", kHostStream, true, -1});
    race.missing_wait = fmt::format(
        "The host wrote to the destination before the copy had completed, and the copy overwrites that: it must "
        "synchronize with an event recorded on stream {} of device {} after '{}' first.",
        race.first.stream, race.first.device, race.first.op);
    report(std::move(race), false);
  }
  std::memmove(reinterpret_cast<void*>(copy.destination),   // NOLINT(performance-no-int-to-ptr)
               reinterpret_cast<void const*>(copy.source),  // NOLINT(performance-no-int-to-ptr)
               copy.bytes);
}

void World::observe(VectorClock const& known) {
  Actor& host = actors_[kHostActor];
  if (!host.known.merge(known)) {
    return;
  }
  ++host_version_;
  if (pending_copies_ == 0) {
    return;
  }
  for (std::size_t i = 1; i < actors_.size(); ++i) {
    auto& pending = actors_[i].pending;
    while (!pending.empty() &&
           (pending.front()->landed || host.known.knows(pending.front()->actor, pending.front()->epoch))) {
      if (!pending.front()->landed) {
        land(*pending.front());
      }
      pending.pop_front();
    }
  }
}

Access World::access_of(Stamp const& stamp) const {
  Actor const& actor = actors_[stamp.actor];
  return {names_[stamp.op], actor.ref.id, stamp.write, actor.ref.device};
}

Race World::race_of(Conflict const& conflict, int device, Access second) const {
  Race race;
  race.first = access_of(conflict.earlier);
  race.second = std::move(second);
  race.device = device;
  race.begin = conflict.begin;
  race.end = conflict.end;
  std::string const event = fmt::format("an event recorded on stream {} of device {} after '{}'", race.first.stream,
                                        race.first.device, race.first.op);
  race.missing_wait = race.second.stream == kHostStream
                          ? fmt::format("The host must synchronize with {} before '{}'.", event, race.second.op)
                          : fmt::format("Stream {} of device {} must wait for {} before '{}'.", race.second.stream,
                                        race.second.device, event, race.second.op);
  return race;
}

void World::report(Race race, bool may_throw) {
  if (races_.size() < kMostReports) {
    races_.push_back(race);
  }
  if (config_.checker != CheckerMode::kRaise) {
    return;
  }
  if (may_throw) {
    throw SimRace(std::move(race));
  }
  if (!unthrown_) {
    unthrown_ = std::make_exception_ptr(SimRace(std::move(race)));
  }
}

void World::report(Finding finding, bool may_throw) {
  if (findings_.size() < kMostReports) {
    findings_.push_back(finding);
  }
  if (config_.checker != CheckerMode::kRaise) {
    return;
  }
  if (may_throw) {
    throw SimMisuse(std::move(finding));
  }
  if (!unthrown_) {
    unthrown_ = std::make_exception_ptr(SimMisuse(std::move(finding)));
  }
}

void World::throw_deferred() {
  if (unthrown_) [[unlikely]] {
    std::rethrow_exception(std::exchange(unthrown_, nullptr));
  }
}

void World::clear_reports() {
  races_.clear();
  findings_.clear();
  unthrown_ = nullptr;
}

void World::set_checker(CheckerMode mode) {
  if (!checking() && mode != CheckerMode::kOff) {
    auto const forget = [](Block& block) { block.accesses.clear(); };
    for (auto const& device : devices_) {
      device->memory.each_block(forget);
    }
    if (pinned_) {
      pinned_->each_block(forget);
    }
    foreign_.each_block(forget);
  }
  config_.checker = mode;
}

}  // namespace noria::sim

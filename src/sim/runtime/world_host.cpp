// Host memory that copies use, and what host code does with it.

#include <fmt/format.h>
#include <noria/error.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "sim/runtime/world.h"

namespace noria::sim {
namespace {

std::uintptr_t address(void const* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

void* pointer_to(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

World::~World() {
  reserved_host_.each_block([](Block const& block) { munmap(pointer_to(block.begin), block.bytes); });
}

void World::pin(Bytes bytes) {
  NORIA_CHECK(config_.pinned_memory, UnsupportedOperation,
              "the simulated device is configured without pinned memory (pinned_memory=False)");
  auto const fail = [&](std::string const& why) {
    ++host_stats_.pin_failures;
    throw SimPinFailure(fmt::format("could not page-lock {}: {} ({} are page-locked)", format_bytes(bytes), why,
                                    format_bytes(host_stats_.pinned_booked)));
  };
  if (faults_.strike(FaultKind::kPinFailure, -1)) {
    fail("injected failure");
  }
  if (config_.pinned_limit_bytes != 0 && host_stats_.pinned_booked + bytes > config_.pinned_limit_bytes) {
    empty_pinned_cache();
    if (host_stats_.pinned_booked + bytes > config_.pinned_limit_bytes) {
      fail(fmt::format("the limit is {}", format_bytes(config_.pinned_limit_bytes)));
    }
  }
  host_time_ += nanoseconds(static_cast<double>(bytes) * devices_.front()->profile.pin_seconds_per_byte);
  ++host_stats_.pins;
  host_stats_.pinned_booked += bytes;
  host_stats_.peak_pinned_booked = std::max(host_stats_.peak_pinned_booked, host_stats_.pinned_booked);
}

void* World::allocate_pinned(Bytes bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  if (!pinned_) {
    pinned_ = std::make_unique<PinnedMemory>(config_.dry);
  }
  process_deferred(false);
  Block* block = pinned_->take_cached(bytes);
  if (block == nullptr) {
    pin(PinnedMemory::rounded(bytes));
    block = &pinned_->take_fresh(bytes);
  }
  block->asked = bytes;
  block->uses.clear();
  block->accesses.forget_known(actors_[kHostActor].known);
  ++host_stats_.pinned_allocations;
  host_stats_.pinned_allocated += bytes;
  return pointer_to(block->begin);
}

void World::retire_host_block(Block& block, char const* op) {
  VectorClock known = actors_[kHostActor].known;
  for (BlockUse const& use : block.uses) {
    known.merge(use.known);
  }
  if (checking()) {
    if (auto const conflict = block.accesses.find_conflict(block.begin, block.end(), true, known)) {
      report(race_of(*conflict, -1, {op, kHostStream, true, -1}), false);
    }
  }
  for (auto const& copy : block.pending) {
    if (!copy->landed && !known.knows(copy->actor, copy->epoch)) {
      land(*copy);
    }
  }
  block.drop_landed();
}

void World::free_pinned(void* pointer) {
  if (pointer == nullptr) {
    return;
  }
  Block* const block = pinned_ ? pinned_->find(address(pointer)) : nullptr;
  if (block == nullptr || block->state != BlockState::kLive || block->begin != address(pointer)) {
    report_bad_free(pointer, block, "free of pinned memory");
    return;
  }
  host_stats_.pinned_allocated -= block->asked;
  retire_host_block(*block, "free of pinned memory");
  block->state = BlockState::kDeferred;
  deferred_.push_back({block, true});
  process_deferred(false);
}

void World::record_pinned_use(void const* pointer, StreamRef ref) {
  Block* const block = find(address(pointer));
  if (block == nullptr || block->state != BlockState::kLive || block->device >= 0) {
    return;
  }
  Actor const& actor = stream(ref);
  ActorId const id = id_of(actor);
  auto const same = std::ranges::find(block->uses, id, &BlockUse::actor);
  if (same != block->uses.end()) {
    same->known = actor.known;
    same->done = actor.ready;
  } else {
    block->uses.push_back({id, actor.known, actor.ready});
  }
}

void World::empty_pinned_cache() {
  if (pinned_) {
    process_deferred(false);
    host_stats_.pinned_booked -= pinned_->release_cached();
  }
}

void World::register_host(void* pointer, Bytes bytes) {
  if (bytes == 0 || device_of(pointer) || (pinned_ && pinned_->contains(address(pointer)))) {
    throw std::invalid_argument(
        fmt::format("cannot page-lock [{:#x}, {:#x}): it is empty, device memory, or page-locked already",
                    address(pointer), address(pointer) + bytes));
  }
  Block const* const reserved = reserved_host_.empty() ? nullptr : reserved_host_.find(address(pointer));
  foreign_.add(address(pointer), bytes, -1, 0).real = reserved == nullptr || reserved->real;
  try {
    pin(bytes);
  } catch (...) {
    foreign_.remove(address(pointer));
    throw;
  }
  host_stats_.registered += bytes;
}

void World::unregister_host(void* pointer) {
  Block* const block = foreign_.find(address(pointer));
  if (block == nullptr || block->begin != address(pointer) || block->device >= 0) {
    throw std::invalid_argument(fmt::format("no registered range begins at {:#x}", address(pointer)));
  }
  retire_host_block(*block, "unregister of pinned memory");
  land_all(*block);
  host_stats_.registered -= block->bytes;
  host_stats_.pinned_booked -= block->bytes;
  foreign_.remove(block->begin);
}

bool World::is_pinned(void const* pointer) const {
  Block const* const block = find(address(pointer));
  return block != nullptr && block->device < 0 && block->state == BlockState::kLive;
}

void* World::reserve_host(Bytes bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  bool const real = bytes <= kSmallBlock;
  void* const begin = mmap(nullptr, bytes, real ? PROT_READ | PROT_WRITE : PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) {
    throw Error(fmt::format("could not reserve {} of addresses for host memory: {}", format_bytes(bytes),
                            std::strerror(errno)));
  }
  reserved_host_.add(address(begin), bytes, -1, 0).real = real;
  return begin;
}

void World::release_reserved_host(void* pointer) {
  Block* const block = reserved_host_.find(address(pointer));
  if (block == nullptr || block->begin != address(pointer)) {
    if (pointer != nullptr) {
      report_bad_free(pointer, block, "release of reserved host memory");
    }
    return;
  }
  munmap(pointer, block->bytes);
  reserved_host_.remove(block->begin);
}

void World::host_access(void const* pointer, Bytes bytes, bool write, std::string_view name) {
  Block* const block = find(address(pointer));
  if (!checking() || bytes == 0 || block == nullptr || block->device >= 0) {
    return;
  }
  throw_deferred();
  Actor& host = actors_[kHostActor];
  host.known.set(kHostActor, ++host.epoch);
  ++host_version_;
  Range const range{pointer, std::min(bytes, block->end() - address(pointer))};
  touches_.clear();
  resolve(host, name, {&range, 1}, write);
  check_touches(host, name);
  settle_touches(host, intern(name), host.epoch);
}

}  // namespace noria::sim

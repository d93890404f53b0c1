// Device memory: who gets which block when, what that costs, and what a block's history says.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "sim/runtime/world.h"

namespace noria::sim {
namespace {

std::uintptr_t address(void const* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

void* pointer_to(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

Bytes rounded(Bytes bytes) { return align_up(bytes, kBlockAlignment); }

// Without a cache, blocks belong to no stream once they are free: giving them back has waited for all.
constexpr std::int64_t kAnyStream = -1;

}  // namespace

Bytes World::room(Device const& device) const {
  Bytes const taken = config_.caching_allocator ? device.memory.reserved() + device.adopted : device.stats.allocated;
  return device.memory.capacity() - std::min(device.memory.capacity(), taken);
}

void World::update_reserved(Device& device) const {
  device.stats.reserved =
      config_.caching_allocator ? device.memory.reserved() + device.adopted : device.stats.allocated;
  device.stats.peak_reserved = std::max(device.stats.peak_reserved, device.stats.reserved);
}

void World::count_allocation(Device& device, Bytes asked) {
  ++device.stats.allocations;
  device.stats.allocated += rounded(asked);
  device.stats.allocated_total += rounded(asked);
  device.stats.peak_allocated = std::max(device.stats.peak_allocated, device.stats.allocated);
  update_reserved(device);
}

void World::count_free(Device& device, Bytes asked) {
  ++device.stats.frees;
  device.stats.allocated -= rounded(asked);
  device.stats.freed_total += rounded(asked);
  update_reserved(device);
}

void World::out_of_memory(Device& device, Bytes asked) {
  ++device.stats.ooms;
  update_reserved(device);
  throw SimOutOfMemory(
      {device.index, asked, device.memory.capacity(), room(device), device.stats.allocated, device.stats.reserved});
}

void World::make_room(Device& device) {
  ++device.stats.allocation_retries;
  process_deferred(true);
  release_segments(device);
}

Block* World::take_block(Device& device, Bytes bytes, StreamRef ref) {
  if (!config_.caching_allocator) {
    if (bytes > room(device)) {
      return nullptr;
    }
    host_time_ += device.prices.alloc;
    ++device.stats.device_allocations;
    Block* const block = device.memory.take_cached(bytes, kAnyStream);
    return block != nullptr ? block : device.memory.take_fresh(bytes, kAnyStream, std::numeric_limits<Bytes>::max());
  }
  if (Block* const block = device.memory.take_cached(bytes, ref.id)) {
    return block;
  }
  Block* block = device.memory.take_fresh(bytes, ref.id, room(device));
  if (block == nullptr) {
    make_room(device);
    block = device.memory.take_cached(bytes, ref.id);
  }
  if (block == nullptr) {
    block = device.memory.take_fresh(bytes, ref.id, room(device));
  }
  if (block != nullptr) {
    host_time_ += device.prices.alloc;
    ++device.stats.device_allocations;
  }
  return block;
}

void* World::allocate(Bytes bytes, StreamRef ref) {
  if (bytes == 0) {
    return nullptr;
  }
  Actor& actor = stream(ref);
  Device& device = this->device(ref.device);
  process_deferred(false);
  if (faults_.strike(FaultKind::kOutOfMemory, ref.device, device.stats.allocated + rounded(bytes))) {
    out_of_memory(device, bytes);
  }
  // No device has this much; rounding must not wrap.
  Block* const block = bytes > device.memory.capacity() ? nullptr : take_block(device, rounded(bytes), ref);
  if (block == nullptr) {
    out_of_memory(device, bytes);
  }
  block->asked = bytes;
  block->stream = ref.id;
  block->users.clear();
  block->uses.clear();
  if (checking()) {
    block->accesses.forget_known(actors_[kHostActor].known);
  }
  learn_from_host(actor);
  poison_free(*block, actor.known);
  block->poisoned = false;
  count_allocation(device, bytes);
  return pointer_to(block->begin);
}

void World::poison_free(Block& block, VectorClock const& known) {
  if (!block.pending.empty()) {
    land_needed(block, block.begin, block.end(), true, known);
  }
  // A copy that nothing orders before this may be waited for yet, before anybody reuses the bytes: leave them to it.
  if (!lazy() || !block.real || block.poisoned || !block.pending.empty()) {
    return;
  }
  poison_range(block.begin, block.bytes);
  block.poisoned = true;
}

void World::report_bad_free(void const* pointer, Block const* block, char const* what) {
  bool const twice = block != nullptr ? block->state != BlockState::kLive : device_of(pointer).has_value();
  Finding finding;
  finding.kind = twice ? FindingKind::kDoubleFree : FindingKind::kInvalidFree;
  finding.op = what;
  finding.stream = kHostStream;
  finding.device = block != nullptr ? block->device : device_of(pointer).value_or(-1);
  finding.begin = address(pointer);
  finding.end = address(pointer);
  finding.text = twice ? fmt::format("double free: {} of {:#x}, which was given back already", what, address(pointer))
                       : fmt::format("invalid free: {} of {:#x}, where no block begins", what, address(pointer));
  report(std::move(finding), false);
}

void World::free(void* pointer) {
  if (pointer == nullptr) {
    return;
  }
  Block* const block = find(address(pointer));
  if (block == nullptr || block->state != BlockState::kLive || block->begin != address(pointer) ||
      block->segment == nullptr || block->device < 0) {
    report_bad_free(pointer, block, "free");
    return;
  }
  Device& device = this->device(block->device);
  Actor& owner = stream({block->device, block->stream});
  count_free(device, block->asked);
  if (!config_.caching_allocator) {
    Nanoseconds time = 0;
    for (ActorId const actor : device.streams) {
      time = std::max(time, actors_[actor].ready);
    }
    wait_until(device, time, "free");
    for (ActorId const actor : device.streams) {
      observe(actors_[actor].known);
    }
    host_time_ += device.prices.alloc;
    ++device.stats.device_frees;
  } else {
    for (ActorId const user : block->users) {
      block->uses.push_back({user, actors_[user].known, actors_[user].ready});
    }
  }
  block->users.clear();
  if (block->uses.empty()) {
    learn_from_host(owner);
    poison_free(*block, owner.known);
    device.memory.give(*block);
  } else {
    block->state = BlockState::kDeferred;
    deferred_.push_back({block, false});
  }
}

void World::record_stream(void const* pointer, StreamRef ref) {
  Block* const block = find(address(pointer));
  if (block == nullptr || block->state != BlockState::kLive || block->device < 0) {
    return;
  }
  ActorId const user = id_of(stream(ref));
  bool const own = ref.device == block->device && ref.id == block->stream;
  if (!own && std::ranges::find(block->users, user) == block->users.end()) {
    block->users.push_back(user);
  }
}

void World::process_deferred(bool wait) {
  if (deferred_.empty()) {
    return;
  }
  std::vector<Deferred> left;
  for (Deferred const& deferred : std::exchange(deferred_, {})) {
    Nanoseconds done = 0;
    for (BlockUse const& use : deferred.block->uses) {
      done = std::max(done, use.done);
    }
    if (done > host_time_ && wait && !deferred.pinned) {
      wait_until(device(deferred.block->device), done, "wait for a freed block");
    }
    if (done > host_time_) {
      left.push_back(deferred);
    } else {
      give_back(deferred);
    }
  }
  deferred_.insert(deferred_.end(), left.begin(), left.end());
}

void World::give_back(Deferred const& deferred) {
  Block& block = *deferred.block;
  // The streams noted for the block have passed, so all that they knew is done, for this block at least.
  for (BlockUse const& use : block.uses) {
    land_needed(block, block.begin, block.end(), true, use.known);
    block.accesses.forget_known(use.known);
  }
  block.uses.clear();
  if (deferred.pinned) {
    pinned_->give(block);
    return;
  }
  Actor& owner = stream({block.device, block.stream});
  learn_from_host(owner);
  poison_free(block, owner.known);
  device(block.device).memory.give(block);
}

void World::land_all(Block& block) {
  for (auto const& copy : block.pending) {
    if (!copy->landed) {
      land(*copy);
    }
  }
  block.pending.clear();
}

void World::release_segments(Device& device) {
  std::size_t const count = device.memory.release_cached([this](Block& block) { land_all(block); });
  host_time_ += device.prices.alloc * static_cast<Nanoseconds>(count);
  device.stats.device_frees += count;
  update_reserved(device);
}

void World::empty_cache(int index) {
  process_deferred(false);
  if (config_.caching_allocator) {
    release_segments(device(index));
  }
}

void World::adopt(void* pointer, Bytes bytes, StreamRef ref) {
  static_cast<void>(stream(ref));
  Device& device = this->device(ref.device);
  if (faults_.strike(FaultKind::kOutOfMemory, ref.device, device.stats.allocated + rounded(bytes))) {
    out_of_memory(device, bytes);
  }
  if (rounded(bytes) > room(device)) {
    make_room(device);
  }
  if (rounded(bytes) > room(device)) {
    out_of_memory(device, bytes);
  }
  foreign_.add(address(pointer), bytes, ref.device, ref.id);
  device.adopted += rounded(bytes);
  count_allocation(device, bytes);
}

void World::release_adopted(void* pointer) {
  Block* const block = foreign_.find(address(pointer));
  if (block == nullptr || block->begin != address(pointer) || block->device < 0) {
    report_bad_free(pointer, block, "release");
    return;
  }
  Device& device = this->device(block->device);
  land_all(*block);
  device.adopted -= rounded(block->asked);
  count_free(device, block->asked);
  foreign_.remove(block->begin);
}

MemoryInfo World::memory_info(int index) const {
  Device const& device = this->device(index);
  return {room(device), device.memory.capacity()};
}

std::optional<int> World::device_of(void const* pointer) const {
  for (auto const& device : devices_) {
    if (device->memory.contains(address(pointer))) {
      return device->index;
    }
  }
  Block const* const block = foreign_.empty() ? nullptr : foreign_.find(address(pointer));
  return block != nullptr && block->device >= 0 ? std::optional(block->device) : std::nullopt;
}

std::optional<BlockInfo> World::block_info(void const* pointer) const {
  Block const* const block = find(address(pointer));
  if (block == nullptr || block->state != BlockState::kLive) {
    return std::nullopt;
  }
  return BlockInfo{pointer_to(block->begin), block->asked, block->device, block->stream};
}

bool World::is_real(void const* pointer) const {
  if (!config_.dry) {
    return true;
  }
  Block const* block = find(address(pointer));
  if (block == nullptr && !reserved_host_.empty()) {
    block = reserved_host_.find(address(pointer));
  }
  return block != nullptr ? block->real : !device_of(pointer).has_value();
}

void World::poison(void* pointer, Bytes bytes, StreamRef ref) {
  Actor& actor = stream(ref);
  Epoch const epoch = begin_operation(actor);
  Range const range{pointer, bytes};
  touches_.clear();
  resolve(actor, "poison", {&range, 1}, true);
  if (checking()) {
    check_touches(actor, "poison");
  }
  settle_touches(actor, naming() ? intern("poison") : 0, epoch);
  if (bytes > 0 && is_real(pointer)) {
    std::memset(pointer, kPoisonByte, bytes);
  }
}

}  // namespace noria::sim

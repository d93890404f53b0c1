// Loads from files. See Note [Reads].
#include <noria/error.h>

#include <algorithm>

#include "core/log.h"
#include "engine/blocking.h"
#include "engine/engine.h"

namespace noria {

// Note [Reads]
// A group whose home is in files is read by the reader's thread while others are computed with: on the cpu straight
// into its place in the arena, for other devices into a slot of the staging. Its place is taken when the read begins,
// so the group counts as loaded; whoever needs it waits for the read first (await_read), and on other devices the copy
// from the slot is given to the copy stream as soon as anybody finds the read done. A read that fails leaves the group
// evicted, and its error goes to the use that waited for it; the next use tries again.

namespace {

/// Reads under way or waiting for their copy; more would only take host memory.
constexpr std::size_t kStagingSlots = 3;

}  // namespace

bool Engine::passes_staging(plan::GroupIndex group) const {
  HostHome const& home = groups_[group].home;
  return staging_ && (home.on_disk() || (staging_->is_pinned() && !home.block()->is_pinned()));
}

void Engine::prepare_disk() {
  Bytes largest_read = 0;
  Bytes largest_pageable = 0;
  for (GroupState const& group : groups_) {
    Bytes& largest = group.home.on_disk() ? largest_read : largest_pageable;
    if (group.home.on_disk() || (group.home.block() && !group.home.block()->is_pinned())) {
      largest = std::max(largest, group.bytes);
    }
  }
  if (largest_read > 0) {
    reader_ = std::make_unique<Reader>();
    if (!std::exchange(ahead_, true)) {
      plan_residency();
    }
  }
  bool const pageable_passes = async_ && options_.low_memory && largest_pageable > 0;
  if (!options_.device.is_cpu() && (largest_read > 0 || pageable_passes)) {
    Bytes const slot = std::max(largest_read, largest_pageable);
    Bytes pinned = kStagingSlots * align_up(slot, 4096);
    for (GroupState const& group : groups_) {
      pinned += group.home.block() && group.home.block()->is_pinned() ? group.home.block()->booked_bytes() : 0;
    }
    bool const may_pin = options_.pin != Pinning::kOff && pinned <= options_.pinned_limit;
    staging_ = std::make_unique<Staging>(backend_, kStagingSlots, slot, may_pin);
  }
}

bool Engine::take_slot(plan::GroupIndex index, std::span<plan::GroupIndex const> sooner, bool demanded) {
  GroupState& group = groups_[index];
  group.slot = staging_->take().value_or(kNoSlot);
  if (group.slot == kNoSlot && demanded) {
    // Reads for later give way; then the oldest copy is waited for.
    for (plan::GroupIndex g = 0; g < groups_.size() && group.slot == kNoSlot; ++g) {
      GroupState& other = groups_[g];
      if (other.slot != kNoSlot && other.uses == 0 && std::ranges::find(sooner, g) == sooner.end()) {
        vacate(g);
        if (!resident(g)) {
          ring_.remove(g);
        }
        group.slot = staging_->take().value_or(kNoSlot);
      }
    }
    // A module of many groups may have filled every slot by itself.
    for (plan::GroupIndex g = 0; g < groups_.size() && group.slot == kNoSlot; ++g) {
      if (groups_[g].reading && groups_[g].slot != kNoSlot) {
        await_read(g);
        break;
      }
    }
    if (group.slot == kNoSlot) {
      BlockingRegion const region;
      ++host_syncs_;
      group.slot = staging_->wait_and_take().value_or(kNoSlot);
    }
  }
  return group.slot != kNoSlot;
}

void Engine::start_read(plan::GroupIndex index) {
  GroupState& group = groups_[index];
  std::byte* const target = group.slot != kNoSlot ? staging_->data(group.slot) : device_address(index);
  group.read_begin = std::chrono::steady_clock::now();
  group.reading = std::make_shared<ReadTicket>(reader_->start(group.home.request({target, group.bytes})));
}

void Engine::finish_read(plan::GroupIndex index) {
  GroupState& group = groups_[index];
  std::shared_ptr<ReadTicket> const ticket = std::exchange(group.reading, nullptr);
  try {
    ticket->wait();  // done already: throws what went wrong
    if (measuring_) {
      // Reads are served in their order: this one had the disk since it was asked for, or since the one before it.
      measured_copy_seconds_ +=
          std::chrono::duration<double>(ticket->finished() - std::max(group.read_begin, last_read_)).count();
      measured_bytes_ += static_cast<double>(group.bytes);
      last_read_ = std::max(last_read_, ticket->finished());
    }
    std::byte* const target = group.slot != kNoSlot ? staging_->data(group.slot) : device_address(index);
    group.home.copy_parts({target, group.bytes});
    if (group.slot != kNoSlot) {
      copy_staged(index, async_ ? in_stream_ : backend_.current_stream());
    }
  } catch (...) {
    give_slot_back(index);
    group.place = Place::kEvicted;
    if (!resident(index)) {
      ring_.remove(index);
    }
    throw;
  }
}

void Engine::await_read(std::unique_lock<std::mutex>& lock, plan::GroupIndex index) {
  GroupState& group = groups_[index];
  while (std::shared_ptr<ReadTicket> const ticket = group.reading) {
    if (!ticket->done()) {
      auto const begin = std::chrono::steady_clock::now();
      lock.unlock();
      {
        BlockingRegion const region;
        ticket->wait_until_done();
      }
      lock = lock_politely(mutex_);
      double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      ++stalls_;
      ++group.stalls;
      stall_seconds_ += seconds;
      group.stall_seconds += seconds;
    }
    if (group.reading == ticket) {  // another thread may have finished it meanwhile
      finish_read(index);
    }
  }
  NORIA_CHECK(group.place == Place::kLoaded, StorageError,
              "reading the group '" + group.name + "' failed in another thread; use it again to try once more", "", 0);
}

void Engine::await_read(plan::GroupIndex index) {
  if (std::shared_ptr<ReadTicket> const ticket = groups_[index].reading) {
    {
      BlockingRegion const region;
      ticket->wait_until_done();
    }
    finish_read(index);
  }
}

void Engine::finish_reads_done() noexcept {
  for (plan::GroupIndex g = 0; reader_ && g < groups_.size(); ++g) {
    if (groups_[g].reading && groups_[g].slot != kNoSlot && groups_[g].reading->done()) {
      try {
        finish_read(g);
      } catch (std::exception const& error) {
        log(LogLevel::kDebug, std::string("reading ahead failed: ") + error.what());
      }
    }
  }
}

void Engine::cancel_read(plan::GroupIndex index) noexcept {
  GroupState& group = groups_[index];
  if (group.reading) {
    BlockingRegion const region;
    group.reading.reset();  // waits until nothing touches its memory
  }
  give_slot_back(index);
}

void Engine::give_slot_back(plan::GroupIndex index) noexcept {
  if (GroupState& group = groups_[index]; group.slot != kNoSlot) {
    staging_->give_back(std::exchange(group.slot, kNoSlot));
  }
}

void Engine::read_now(plan::GroupIndex index, std::span<std::byte> target) {
  GroupState const& group = groups_[index];
  if (!reader_) {
    reader_ = std::make_unique<Reader>();
  }
  {
    BlockingRegion const region;
    reader_->start(group.home.request(target)).wait();
  }
  group.home.copy_parts(target);
}

void Engine::bring_home(plan::GroupIndex index) {
  GroupState& group = groups_[index];
  HostHome files = std::exchange(group.home, HostHome());
  give_memory_home(index);
  HostHome memory = std::exchange(group.home, std::move(files));
  read_now(index, {memory.block()->data(), group.bytes});
  group.home = std::move(memory);
}

}  // namespace noria

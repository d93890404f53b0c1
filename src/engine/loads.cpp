// Loads, evictions and write-backs. See Note [Copies].
#include <noria/error.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "core/log.h"
#include "engine/blocking.h"
#include "engine/engine.h"
#include "engine/omission.h"

namespace noria {

// Note [Copies]
// All loads go through one stream in the order they are decided, all write-backs through another. Before a load may
// overwrite a range, the copy stream waits for the marks that ended the uses of what stood there and for its
// write-back; a range that was vacated earlier has been waited for then, on the same stream, so gaps need no marks of
// their own. The compute stream waits for the load's `ready`. Nothing else orders the two, and the host waits for
// neither.

bool Engine::load(plan::GroupIndex index, std::span<plan::GroupIndex const> sooner, bool demanded) {
  std::optional<Bytes> const offset = find_place(index, sooner, demanded);
  if (!offset) {
    return false;
  }
  GroupState& group = groups_[index];
  group.device_offset = *offset;
  group.place = Place::kLoaded;
  group.used_since_load = false;
  group.waited.clear();
  try {
    copy_in(index);
  } catch (...) {
    group.place = Place::kEvicted;
    ring_.remove(index);
    throw;
  }
  ++group.loads;
  ++loads_;
  bytes_in_ += group.bytes;
  return true;
}

std::optional<Bytes> Engine::find_place(plan::GroupIndex index, std::span<plan::GroupIndex const> sooner,
                                        bool demanded) {
  if (resident(index)) {
    return residency_.offsets[index];
  }
  GroupState const& group = groups_[index];
  bool keep_prefetched = true;
  auto const tenancy = [&](plan::GroupIndex other) {
    GroupState const& tenant = groups_[other];
    bool const needed_sooner = std::ranges::find(sooner, other) != sooner.end();
    bool const awaited = keep_prefetched && !tenant.used_since_load && (needed_sooner || demanded);
    return plan::Tenancy{
        .stays = tenant.uses > 0 || needed_sooner || awaited,
        .stays_long = (tenant.uses > 0 && tenant.nested) || (tenant.uses == 0 && needed_sooner) || awaited,
        .last_use = tenant.last_use};
  };
  plan::RangeMap const before = ring_;
  auto const side = group.nested ? plan::RangeMap::Side::kHigh : plan::RangeMap::Side::kLow;
  auto placement = ring_.place(index, group.bytes, side, tenancy);
  if (!placement && demanded) {
    keep_prefetched = false;
    placement = ring_.place(index, group.bytes, side, tenancy);
  }
  if (!placement) {
    return std::nullopt;
  }
  try {
    for (plan::GroupIndex other : placement->evicted) {
      vacate(other);
    }
  } catch (...) {
    // What could not be written back stays where it is.
    ring_ = before;
    for (plan::GroupIndex other : ring_.groups()) {
      if (groups_[other].place == Place::kEvicted) {
        ring_.remove(other);
      }
    }
    throw;
  }
  return residency_.resident_bytes + placement->begin;
}

void Engine::copy_in(plan::GroupIndex index) {
  GroupState& group = groups_[index];
  std::byte* const target = device_address(index);
  c10::Stream const stream = async_ ? in_stream_ : backend_.current_stream();
  if (async_ && group.written_back.recorded() && keeps(Ordering::kWriteBackBeforeReload)) {
    group.written_back.block(stream);
  }
  Event begin;
  if (tracing_) {
    begin = timing_event();
    begin.record(stream);
  }
  auto const wall_begin = std::chrono::steady_clock::now();
  if (group.home.block()) {
    backend_.copy_to_device(target, group.home.block()->data(), group.bytes, stream);
  } else if (options_.device.is_cpu()) {
    BlockingRegion const region;
    group.home.read_files({target, group.bytes});
  } else {
    if (!staging_ || staging_->bytes() < group.bytes) {
      staging_ = HostBlock::pageable(group.bytes);
    }
    BlockingRegion const region;
    group.home.read_files({staging_->data(), group.bytes});
    backend_.copy_to_device(target, staging_->data(), group.bytes, stream);
  }
  if (async_) {
    if (!group.ready) {
      group.ready = backend_.new_event();
    }
    group.ready.record(stream);
  } else {
    double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_begin).count();
    ++stalls_;
    ++group.stalls;
    stall_seconds_ += seconds;
    group.stall_seconds += seconds;
  }
  if (tracing_) {
    note_slice(index, "copy in", std::move(begin), stream);
  }
  if (options_.verify && group.home.block()) {
    std::vector<std::byte> check(group.bytes);
    if (async_) {
      BlockingRegion const region;
      ++host_syncs_;
      group.ready.synchronize();
    }
    backend_.copy_to_host(check.data(), target, group.bytes, stream);
    BlockingRegion const region;
    backend_.synchronize(stream);
    NORIA_CHECK(std::memcmp(check.data(), group.home.block()->data(), group.bytes) == 0, IntegrityError,
                "verify: the device holds other bytes than the host for the group '" + group.name + "'");
  }
}

void Engine::vacate(plan::GroupIndex index) {
  GroupState& group = groups_[index];
  if (any_dirty(index)) {
    write_back(index);
  } else if (resident(index)) {
    settle();
  }
  if (group.open) {
    close_pages(index);
  }
  if (async_) {
    for (std::size_t i = 0; i < group.marks_in_use && keeps(Ordering::kUsesBeforeLoad); ++i) {
      group.marks[i].event.block(in_stream_);
    }
    if (group.written_back.recorded() && keeps(Ordering::kWriteBackBeforeLoad)) {
      group.written_back.block(in_stream_);
    }
  }
  group.marks_in_use = 0;
  group.place = Place::kEvicted;
  if (options_.verify) {
    constexpr int kPoison = 0xFF;  // NaN in every IEEE format
    backend_.fill(device_address(index), kPoison, group.bytes, async_ ? in_stream_ : backend_.current_stream());
  }
}

void Engine::write_back(plan::GroupIndex index) {
  GroupState& group = groups_[index];
  if (group.home.on_disk()) {
    move_home_to_memory(index);
  }
  c10::Stream const stream = async_ ? out_stream_ : backend_.current_stream();
  Event begin;
  if (async_) {
    if (resident(index)) {
      settle();
    } else if (group.uses > 0) {
      // In use right now: everything given to the using streams so far.
      for (c10::Stream user : std::vector<c10::Stream>(group.waited)) {
        mark_free(index, user);
      }
    }
    for (std::size_t i = 0; i < group.marks_in_use && keeps(Ordering::kUsesBeforeWriteBack); ++i) {
      group.marks[i].event.block(stream);
    }
  }
  if (tracing_) {
    begin = timing_event();
    begin.record(stream);
  }
  std::byte* const source = device_address(index);
  for (plan::PageIndex p : group.pages) {
    Page& page = *pages_[p];
    if (page.alive() && page.dirty()) {
      page.clean();
      if (!keeps(Ordering::kWriteBack)) {
        continue;
      }
      backend_.copy_to_host(group.home.block()->data() + page.offset(), source + page.offset(), page.bytes(), stream);
      bytes_out_ += page.bytes();
    }
  }
  if (async_) {
    if (!group.written_back) {
      group.written_back = backend_.new_event();
    }
    group.written_back.record(stream);
  }
  if (tracing_) {
    note_slice(index, "copy out", std::move(begin), stream);
  }
}

void Engine::settle() {
  if (async_) {
    BlockingRegion const region;
    ++host_syncs_;
    backend_.synchronize();
  }
}

void Engine::move_home_to_memory(plan::GroupIndex index) {
  GroupState& group = groups_[index];
  auto block = HostBlock::pageable(group.bytes);
  {
    BlockingRegion const region;
    group.home.read_files({block->data(), group.bytes});
  }
  group.home = HostHome(std::move(block));
}

void Engine::prefetch() {
  if (!async_ || !running_ || !last_group_) {
    return;
  }
  // Far enough to see past residents to the next streamed groups.
  std::array<plan::GroupIndex, 64> upcoming{};
  std::size_t count = order_.upcoming(upcoming);
  std::vector<plan::GroupIndex> sooner;
  if (count == 0 && order_.uses() <= groups_.size()) {
    // The first pass: the order in which the model declares its modules is the best guess there is, and that the group
    // used last may be used again at once.
    sooner.push_back(*last_group_);
    for (plan::GroupIndex g = *last_group_ + 1; g < groups_.size() && count < upcoming.size(); ++g) {
      upcoming[count++] = g;
    }
  }
  // Loads that nobody waits for yet; more would only delay one that a surprise needs at once.
  constexpr std::size_t kMostAhead = 16;
  std::size_t ahead = 0;
  for (std::size_t i = 0; i < count; ++i) {
    plan::GroupIndex const g = upcoming[i];
    if (groups_[g].place == Place::kLoaded) {
      if (!resident(g)) {
        sooner.push_back(g);
      }
      ahead += groups_[g].used_since_load ? 0 : 1;
    } else {
      if (ahead >= kMostAhead || !load(g, sooner, false)) {
        return;
      }
      sooner.push_back(g);
      ++ahead;
    }
  }
}

void Engine::replan_if_learned() {
  std::size_t const period = order_.period();
  // Twice through without a difference: then it is a pass, not a coincidence.
  if (period == 0 || period > (std::size_t{1} << 15U) || order_.confidence() < 2 * period) {
    return;
  }
  std::vector<plan::GroupIndex> order(period);
  if (order_.upcoming(order) < period) {
    return;
  }
  // The same pass may be seen from another start: what counts is how often each group is used, and beside whom.
  std::ranges::rotate(order, std::ranges::min_element(order));
  if (order == planned_order_ && !replan_due_) {
    return;
  }
  replan_due_ = false;
  planned_order_ = order;
  for (plan::GroupUse& cost : costs_) {
    cost.uses = 0;
  }
  for (plan::GroupIndex g : order) {
    ++costs_[g].uses;
  }
  plan::Residency learned = plan::choose_residents(costs_, order, options_.budget, async_ ? options_.depth : 1);
  if (learned.resident != residency_.resident) {
    take_plan(std::move(learned));
  }
}

void Engine::take_plan(plan::Residency residency) {
  for (plan::GroupIndex g = 0; g < groups_.size(); ++g) {
    if (groups_[g].place == Place::kLoaded) {
      vacate(g);
    }
  }
  residency_ = std::move(residency);
  ring_ = plan::RangeMap(arena_bytes_ - residency_.resident_bytes);
}

}  // namespace noria

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
#include "plan/ring_policy.h"

namespace noria {

// Note [Copies]
// All loads go through one stream in the order they are decided, all write-backs through another. Before a load may
// overwrite a range, the copy stream waits for the marks that ended the uses of what stood there and for its
// write-back; a range that was vacated earlier has been waited for then, on the same stream, so gaps need no marks of
// their own. The compute stream waits for the load's `ready`. Nothing else orders the two, and the host waits for
// neither.

bool Engine::load(plan::GroupIndex index, std::span<plan::GroupIndex const> sooner, bool demanded) {
  GroupState& group = groups_[index];
  plan::RoomRequest const request{
      .group = index, .bytes = group.bytes, .nested = group.nested, .demanded = demanded, .sooner = sooner};
  if (comes_in_part(index)) {
    if (load_piece(request)) {
      return true;
    }
    if (!demanded) {
      return false;
    }
    ring_.remove(index);
    part_.reset();
  }
  if (passes_staging(index) && !take_slot(index, sooner, demanded)) {
    return false;
  }
  std::optional<Bytes> offset;
  try {
    offset = find_place(request);
    if (!offset && demanded && part_) {
      ring_.remove(part_->group);  // what comes ahead gives way
      part_.reset();
      offset = find_place(request);
    }
  } catch (...) {
    give_slot_back(index);
    throw;
  }
  if (!offset) {
    give_slot_back(index);
    bool const may_come_in_parts = async_ && !part_ && !passes_staging(index) && !group.home.on_disk();
    return !demanded && may_come_in_parts && load_piece(request);
  }
  group.device_offset = *offset;
  group.place = Place::kLoaded;
  group.used_since_load = false;
  group.waited.clear();
  try {
    copy_in(index);
  } catch (...) {
    give_slot_back(index);
    group.place = Place::kEvicted;
    ring_.remove(index);
    throw;
  }
  ++group.loads;
  ++loads_;
  bytes_in_ += group.bytes;
  return true;
}

plan::Tenant Engine::tenant(plan::GroupIndex index) const {
  GroupState const& state = groups_[index];
  return {.in_use = state.uses > 0 && state.place == Place::kLoaded,
          .nested = state.nested,
          .used_since_load = state.used_since_load,
          .last_use = state.last_use};
}

std::optional<Bytes> Engine::find_place(plan::RoomRequest const& request) {
  if (resident(request.group)) {
    return residency_.offsets[request.group];
  }
  plan::RangeMap const before = ring_;
  auto const placement = plan::find_room(ring_, request, [this](plan::GroupIndex g) { return tenant(g); });
  if (!placement) {
    return std::nullopt;
  }
  vacate_all(placement->evicted, before);
  return residency_.resident_bytes + placement->begin;
}

void Engine::vacate_all(std::span<plan::GroupIndex const> evicted, plan::RangeMap const& before) {
  try {
    for (plan::GroupIndex group : evicted) {
      vacate(group);
    }
  } catch (...) {
    // What could not be written back stays where it is.
    ring_ = before;
    forget_evicted();
    throw;
  }
}

bool Engine::load_piece(plan::RoomRequest const& request) {
  GroupState& group = groups_[request.group];
  auto const tenant_of = [this](plan::GroupIndex g) { return tenant(g); };
  plan::RangeMap const before = ring_;
  bool const first = !comes_in_part(request.group);
  auto const piece =
      first ? plan::find_piece(ring_, request, tenant_of)
            : plan::extend_piece(ring_, request, group.device_offset - residency_.resident_bytes, tenant_of);
  if (!piece) {
    return false;
  }
  vacate_all(piece->evicted, before);
  if (first) {
    group.device_offset = residency_.resident_bytes + piece->place_begin;
    group.used_since_load = false;
    group.waited.clear();
  }
  PartLoad const had = part_.value_or(PartLoad{.group = request.group, .begin = piece->begin, .end = piece->begin});
  bool const whole = piece->bytes() == group.bytes;
  try {
    for (auto const& [begin, end] : {std::pair(piece->begin, had.begin), std::pair(had.end, piece->end)}) {
      if (begin < end) {
        copy_from(request.group, group.home.block()->data(), begin - piece->place_begin, end - piece->place_begin,
                  in_stream_);
        bytes_in_ += end - begin;
      }
    }
    part_ = PartLoad{.group = request.group, .begin = piece->begin, .end = piece->end};
    if (whole) {
      part_.reset();
      group.place = Place::kLoaded;
      verify_load(request.group);
    }
  } catch (...) {
    part_.reset();
    group.place = Place::kEvicted;
    ring_.remove(request.group);
    throw;
  }
  group.loads += whole ? 1 : 0;
  loads_ += whole ? 1 : 0;
  return whole;
}

void Engine::copy_in(plan::GroupIndex index) {
  GroupState& group = groups_[index];
  if (group.home.on_disk()) {
    start_read(index);
    return;
  }
  c10::Stream const stream = async_ ? in_stream_ : backend_.current_stream();
  std::byte const* source = group.home.block()->data();
  if (group.slot != kNoSlot) {
    backend_.write_pinned(staging_->data(group.slot), source, group.bytes);
    copy_staged(index, stream);
    return;
  }
  auto const wall_begin = std::chrono::steady_clock::now();
  copy_from(index, source, 0, group.bytes, stream);
  if (!async_) {
    double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_begin).count();
    ++stalls_;
    ++group.stalls;
    stall_seconds_ += seconds;
    group.stall_seconds += seconds;
  }
  verify_load(index);
}

void Engine::verify_load(plan::GroupIndex index) {
  GroupState const& group = groups_[index];
  if (!options_.verify) {
    return;
  }
  std::vector<std::byte> check(group.bytes);
  if (async_) {
    BlockingRegion const region;
    ++host_syncs_;
    group.ready.synchronize();
  }
  c10::Stream const stream = async_ ? in_stream_ : backend_.current_stream();
  backend_.copy_to_host(check.data(), device_address(index), group.bytes, stream);
  BlockingRegion const region;
  backend_.synchronize(stream);
  NORIA_CHECK(std::memcmp(check.data(), group.home.block()->data(), group.bytes) == 0, IntegrityError,
              "verify: the device holds other bytes than the host for the group '" + group.name + "'");
}

void Engine::copy_staged(plan::GroupIndex index, c10::Stream stream) {
  GroupState& group = groups_[index];
  copy_from(index, staging_->data(group.slot), 0, group.bytes, stream);
  staging_->copied_by(group.slot, stream);
  group.slot = kNoSlot;
}

void Engine::copy_from(plan::GroupIndex index, std::byte const* source, Bytes from, Bytes to, c10::Stream stream) {
  GroupState& group = groups_[index];
  Event begin;
  Event measured_begin;
  if (tracing_) {
    begin = timing_event();
    begin.record(stream);
  }
  if (measuring_) {
    measured_begin = timing_event();
    measured_begin.record(stream);
  }
  backend_.copy_to_device(device_address(index) + from, source + from, to - from, stream);
  if (async_) {
    if (!group.ready) {
      group.ready = backend_.new_event();
    }
    group.ready.record(stream);
  }
  if (measured_begin) {
    CopyProbe probe{.bytes = to - from, .begin = std::move(measured_begin), .end = timing_event()};
    probe.end.record(stream);
    copy_probes_.push_back(std::move(probe));
  }
  if (begin) {
    note_slice(index, "copy in", std::move(begin), stream);
  }
}

void Engine::vacate(plan::GroupIndex index) {
  GroupState& group = groups_[index];
  if (comes_in_part(index)) {
    part_.reset();  // later loads wait for its copy: they go through the same stream
    return;
  }
  cancel_read(index);
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
  if (group.home.on_disk() && scratch_folder_.empty()) {
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
  if (group.home.on_disk()) {
    write_to_scratch(index, stream);
  } else {
    copy_back(index, stream);
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

void Engine::copy_back(plan::GroupIndex index, c10::Stream stream) {
  GroupState const& group = groups_[index];
  std::byte* const source = device_address(index);
  for (plan::PageIndex p : group.pages) {
    Page& page = *pages_[p];
    if (page.alive() && page.dirty()) {
      page.clean();
      if (!keeps(Ordering::kWriteBack)) {
        continue;
      }
      try {
        backend_.copy_to_host(group.home.block()->data() + page.offset(), source + page.offset(), page.bytes(), stream);
      } catch (...) {
        page.mark_dirty();  // still only on the device
        throw;
      }
      bytes_out_ += page.bytes();
    }
  }
}

void Engine::write_to_scratch(plan::GroupIndex index, c10::Stream stream) {
  GroupState& group = groups_[index];
  if (!scratch_) {
    Bytes end = 0;
    scratch_places_.clear();
    for (GroupState const& other : groups_) {
      scratch_places_.push_back(end);
      end += align_up(other.bytes, 4096);
    }
    scratch_ = std::make_unique<ScratchFile>(scratch_folder_, end);
  }
  std::vector<FileExtent> extents;
  std::vector<MemoryPart> parts;
  std::vector<plan::PageIndex> written;
  try {
    for (plan::PageIndex p : group.pages) {
      Page& page = *pages_[p];
      auto const part = std::ranges::find(group.home.parts(), page.offset(), &MemoryPart::group_offset);
      if (page.alive() && page.dirty()) {
        page.clean();
        written.push_back(p);
        if (keeps(Ordering::kWriteBack)) {
          write_page_to_scratch(page, stream);
        }
        extents.push_back({.file = scratch_->source(),
                           .file_offset = scratch_places_[index] + page.offset(),
                           .group_offset = page.offset(),
                           .bytes = page.bytes()});
      } else if (part != group.home.parts().end()) {
        parts.push_back(*part);
      } else {
        extents.push_back(group.home.extent_at(page.offset(), page.bytes()));
      }
    }
  } catch (...) {
    for (plan::PageIndex p : written) {
      pages_[p]->mark_dirty();  // its home is still the old one
    }
    throw;
  }
  group.home = HostHome(std::move(extents), std::move(parts));
}

void Engine::write_page_to_scratch(Page const& page, c10::Stream stream) {
  std::byte const* source = device_address(page.group()) + page.offset();
  std::vector<std::byte> bounce;
  if (!options_.device.is_cpu()) {
    bounce.resize(page.bytes());
    backend_.copy_to_host(bounce.data(), source, page.bytes(), stream);
    BlockingRegion const region;
    ++host_syncs_;
    backend_.synchronize(stream);
    source = bounce.data();
  }
  scratch_->write(scratch_places_[page.group()] + page.offset(), {source, page.bytes()});
  bytes_out_ += page.bytes();
}

void Engine::settle() {
  if (async_ && keeps(Ordering::kSettle)) {
    BlockingRegion const region;
    ++host_syncs_;
    backend_.synchronize();
  }
}

void Engine::move_home_to_memory(plan::GroupIndex index) {
  GroupState& group = groups_[index];
  auto block = HostBlock::pageable(group.bytes);
  read_now(index, {block->data(), group.bytes});
  group.home = HostHome(std::move(block));
}

void Engine::prefetch() {
  if (!ahead_ || !running_ || !last_group_) {
    return;
  }
  finish_reads_done();
  // Far enough to see past residents to the next streamed groups.
  std::array<plan::GroupIndex, plan::kLookAhead> upcoming{};
  std::size_t count = order_.upcoming(upcoming);
  std::vector<plan::GroupIndex> sooner;
  bool const first_pass = count == 0 && order_.uses() <= groups_.size();
  if (first_pass || !last_by_module_) {
    sooner.push_back(*last_group_);  // may be used again at once
  }
  if (first_pass) {
    // The order in which the model declares its modules is the best guess there is.
    for (plan::GroupIndex g = *last_group_ + 1; g < groups_.size() && count < upcoming.size(); ++g) {
      upcoming[count++] = g;
    }
  }
  std::size_t ahead = 0;
  for (std::size_t i = 0; i < count; ++i) {
    plan::GroupIndex const g = upcoming[i];
    if (!async_ && !groups_[g].home.on_disk()) {
      continue;  // its copy would hold up the host now as it does later
    }
    if (groups_[g].place == Place::kLoaded) {
      if (!resident(g)) {
        sooner.push_back(g);
      }
      ahead += groups_[g].used_since_load ? 0 : 1;
    } else {
      if (ahead >= plan::kMostAhead || !load(g, sooner, false)) {
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
  measuring_ = false;  // enough is under way
  if (!use_probes_.empty()) {
    if (!read_measurements()) {
      return;  // at the end of one of the next passes
    }
    stop_measuring();
    replan_due_ = true;
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
  plan::Residency learned = choose(order);
  if (worth_changing(learned, order)) {
    take_plan(std::move(learned));
  }
}

bool Engine::read_measurements() {
  if (!use_probes_.back().after.query() || (!copy_probes_.empty() && !copy_probes_.back().end.query())) {
    return false;
  }
  double seconds = 0.0;
  for (std::size_t i = 0; i + 1 < use_probes_.size(); ++i) {
    plan::GroupIndex const group = use_probes_[i].group;
    seconds += std::max(use_probes_[i].after.elapsed_seconds(use_probes_[i + 1].before), 0.0);
    if (use_probes_[i + 1].group == group) {
      continue;  // operators in a row on one group are one use, as in the learned order
    }
    // The quickest of the passes: the first ones warm up.
    double& known = group_seconds_[group];
    known = known < 0.0 ? seconds : std::min(known, seconds);
    seconds = 0.0;
  }
  for (std::size_t i = 0; i < copy_probes_.size() && !reader_; ++i) {  // a disk is the slower of the two
    CopyProbe const& probe = copy_probes_[i];
    measured_bytes_ += static_cast<double>(probe.bytes);
    measured_copy_seconds_ += probe.begin.elapsed_seconds(probe.end);
  }
  return true;
}

void Engine::stop_measuring() {
  measuring_ = false;
  for (UseProbe& probe : use_probes_) {
    spare_timing_events_.push_back(std::move(probe.before));
    spare_timing_events_.push_back(std::move(probe.after));
  }
  for (CopyProbe& probe : copy_probes_) {
    spare_timing_events_.push_back(std::move(probe.begin));
    spare_timing_events_.push_back(std::move(probe.end));
  }
  use_probes_.clear();
  copy_probes_.clear();
}

void Engine::forget_evicted() noexcept {
  for (plan::GroupIndex g : ring_.groups()) {
    if (groups_[g].place == Place::kEvicted && !comes_in_part(g)) {
      ring_.remove(g);
    }
  }
}

void Engine::take_plan(plan::Residency residency) {
  try {
    for (plan::GroupIndex g = 0; g < groups_.size(); ++g) {
      if (groups_[g].place == Place::kLoaded) {
        vacate(g);
      }
    }
  } catch (...) {
    forget_evicted();
    throw;
  }
  residency_ = std::move(residency);
  empty_ring();
}

void Engine::empty_ring() {
  ring_ = plan::RangeMap(arena_bytes_ - residency_.resident_bytes);
  part_.reset();
}

}  // namespace noria

#include "engine/engine.h"

#include <noria/error.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "core/fork.h"
#include "core/log.h"
#include "engine/blocking.h"
#include "engine/net.h"
#include "engine/omission.h"

namespace noria {
namespace {

/// Where a page begins in its group. 256 bytes: what vendor kernels may assume of an allocation, a multiple of the 64
/// on which CPU matrix products choose their path (DESIGN D7).
constexpr Bytes kPageAlignment = 256;
/// Where a group begins in the arena: the granularity of the device allocators that we know.
constexpr Bytes kGroupAlignment = 512;

std::uint64_t next_engine_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

std::string in_quotes(std::string const& name) { return "'" + name + "'"; }

}  // namespace

std::shared_ptr<Engine> Engine::create(EngineSettings options, std::vector<PageSpec> pages, plan::Grouping grouping) {
  return std::shared_ptr<Engine>(new Engine(options, std::move(pages), std::move(grouping)));
}

std::vector<plan::GroupUse> Engine::device_costs(std::span<PageSpec const> pages, plan::Grouping const& grouping) {
  std::vector<plan::GroupUse> costs;
  for (std::size_t g = 0; g < grouping.groups.size(); ++g) {
    Bytes bytes = 0;
    for (plan::PageIndex page : grouping.groups[g].pages) {
      bytes += align_up(pages[page].bytes, kPageAlignment);
    }
    costs.push_back({.bytes = align_up(bytes, kGroupAlignment), .uses = 1, .around = grouping.around[g]});
  }
  return costs;
}

plan::Grouping Engine::group(std::span<plan::ModuleNode const> modules, std::span<PageSpec const> pages,
                             plan::GroupingOptions options, std::optional<Bytes> budget) {
  std::vector<Bytes> bytes;
  Bytes total = 0;
  for (PageSpec const& page : pages) {
    bytes.push_back(page.bytes);
    total += page.bytes;
  }
  if (options.granularity != Granularity::kAuto || !budget) {
    return plan::make_groups(modules, bytes, options);
  }
  constexpr Bytes kPartsOfBudget = 4;  // a larger group leaves no room to load ahead
  std::vector<Bytes> splits{std::max<Bytes>(*budget / kPartsOfBudget, 1)};
  for (Bytes split = std::bit_ceil(std::max<Bytes>(total, 1)); split > 0; split /= 2) {
    splits.push_back(split);  // the same for every budget: what one names as the smallest works when it is given
  }
  plan::Grouping least;
  Bytes least_bytes = ~Bytes{0};
  for (Bytes split : splits) {
    options.split_above_bytes = split;
    plan::Grouping grouping = plan::make_groups(modules, bytes, options);
    Bytes const needed = plan::smallest_budget(device_costs(pages, grouping)).bytes;
    if (needed <= *budget) {
      return grouping;
    }
    if (needed < least_bytes) {
      least = std::move(grouping);
      least_bytes = needed;
    }
  }
  return least;
}

Engine::Interpreter& Engine::interpreter() {
  static Interpreter known;
  return known;
}

Engine::Engine(EngineSettings options, std::vector<PageSpec> pages, plan::Grouping grouping)
    : id_(next_engine_id()),
      forks_(forks()),
      options_(options),
      backend_(DeviceBackend::get(options_.device)),
      grouping_(std::move(grouping)),
      pages_(pages.size()),
      in_stream_(c10::Stream::DEFAULT, backend_.device()),
      out_stream_(c10::Stream::DEFAULT, backend_.device()) {
  options_.device = backend_.device();
  Capabilities const& can = backend_.capabilities();
  async_ = options_.use_streams && can.streams && can.events && can.async_copies;
  ahead_ = async_;
  costs_ = device_costs(pages, grouping_);
  groups_.reserve(grouping_.groups.size());
  for (plan::GroupIndex g = 0; g < grouping_.groups.size(); ++g) {
    plan::Group const& planned = grouping_.groups[g];
    GroupState state;
    state.name = planned.name;
    state.pages = planned.pages;
    Bytes offset = 0;
    for (plan::PageIndex page : planned.pages) {
      NORIA_ASSERT(!pages_[page], "a page is in one group");
      pages_[page] = std::make_unique<Page>(pages[page].name, pages[page].bytes, g, offset);
      offset += align_up(pages[page].bytes, kPageAlignment);
    }
    state.bytes = costs_[g].bytes;
    groups_.push_back(std::move(state));
  }
  for (auto const& around : grouping_.around) {
    for (plan::GroupIndex outer : around) {
      groups_[outer].nested = true;
    }
  }
  NORIA_ASSERT(std::ranges::all_of(pages_, [](auto const& page) { return page != nullptr; }), "every page has a group");
  plan_residency();
}

bool Engine::inherited() const { return forks_ != forks(); }

std::unique_lock<std::mutex> Engine::enter() const {
  NORIA_CHECK(!inherited(), Error,
              "this model was offloaded in another process, of which this one is a fork: the threads that bring its "
              "weights are not here. Start processes with the method 'spawn', or offload the model in the child");
  return lock_politely(mutex_);
}

std::unique_lock<std::mutex> Engine::enter_anyway() const {
  return inherited() ? std::unique_lock<std::mutex>() : lock_politely(mutex_);
}

void Engine::leave_to_parent() {
  struct Parts {
    std::unique_ptr<Reader> reader;
    std::unique_ptr<Staging> staging;
    c10::DataPtr arena;
    std::vector<GroupState> groups;
  };
  static auto* const kept = new std::vector<Parts>;  // until this process ends
  kept->push_back({.reader = std::move(reader_),
                   .staging = std::move(staging_),
                   .arena = std::move(arena_),
                   .groups = std::move(groups_)});
}

Engine::~Engine() {
  if (inherited()) {
    try {
      leave_to_parent();
    } catch (std::exception const& error) {
      log(LogLevel::kError, std::string("what a parent process offloaded could not be left alone: ") + error.what());
    }
    return;
  }
  for (plan::GroupIndex g = 0; g < groups_.size(); ++g) {
    cancel_read(g);
  }
  if (counted_by_net_) {
    OperatorNet::remove_engine();
  }
  // Copies may still be running into memory that goes now. At process exit the device may be gone: then it is leaked.
  try {
    if (arena_ && async_) {
      backend_.synchronize();
    }
  } catch (std::exception const& error) {
    log(LogLevel::kWarning, std::string("could not wait for the device while offloading ended: ") + error.what());
    (void)arena_.release_context();
  }
}

std::vector<plan::PageIndex> const& Engine::group_pages(plan::GroupIndex group) const { return groups_[group].pages; }

void Engine::plan_residency() {
  std::vector<plan::GroupIndex> order(groups_.size());
  std::iota(order.begin(), order.end(), plan::GroupIndex{0});
  plan::SmallestBudget const smallest = plan::smallest_budget(costs_);
  if (options_.budget < smallest.bytes) {
    throw BudgetError("budget " + format_bytes(options_.budget) + " is below the smallest that works, " +
                          format_bytes(smallest.bytes) + " (" + std::to_string(smallest.bytes) +
                          " bytes): " + describe_need(smallest.largest),
                      smallest.bytes);
  }
  residency_ = choose(order);
  planned_order_ = std::move(order);
}

plan::Speeds Engine::speeds(std::span<plan::GroupIndex const> order) const {
  plan::Speeds speeds = plan::Speeds::assumed(costs_, order.size());
  if (measured_copy_seconds_ > 0.0) {
    speeds.bytes_per_second = measured_bytes_ / measured_copy_seconds_;
    double known = 0.0;
    double count = 0.0;
    for (double seconds : group_seconds_) {
      known += std::max(seconds, 0.0);
      count += seconds >= 0.0 ? 1.0 : 0.0;
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
      double const seconds = group_seconds_[order[i]];
      speeds.use_seconds[i] = seconds >= 0.0 ? seconds : known / std::max(count, 1.0);
    }
  }
  return speeds;
}

plan::Residency Engine::choose(std::span<plan::GroupIndex const> order) const {
  if (!ahead_) {
    return plan::choose_residents(costs_, order, options_.budget, 1);
  }
  if (options_.device.is_cpu()) {
    // Reads take time from the very cores that compute: the fewest bytes, whatever a clock says.
    return plan::choose_residents(costs_, order, options_.budget, options_.depth);
  }
  plan::Speeds const known = speeds(order);
  return plan::choose_residents(costs_, order, options_.budget, options_.depth, &known);
}

bool Engine::worth_changing(plan::Residency const& other, std::span<plan::GroupIndex const> order) const {
  if (other.resident == residency_.resident) {
    return false;
  }
  if (!ahead_ || holds_ > 0 || options_.device.is_cpu()) {
    return true;
  }
  constexpr double kWorthIt = 0.995;  // a change sends everything out once
  plan::Speeds const known = speeds(order);
  auto const seconds = [&](plan::Residency plan) {
    plan.ring_bytes = arena_bytes_ - plan.resident_bytes;
    return plan::steady_seconds(costs_, order, plan, known);
  };
  return seconds(other) < kWorthIt * seconds(residency_);
}

std::string Engine::describe_need(plan::GroupIndex group) const {
  std::string text = "the group " + in_quotes(groups_[group].name) + " of " + format_bytes(groups_[group].bytes);
  std::vector<plan::GroupIndex> const& around = grouping_.around[group];
  for (std::size_t i = 0; i < around.size(); ++i) {
    text += (i == 0 ? ", in use together with " : ", ") + in_quotes(groups_[around[i]].name) + " of " +
            format_bytes(groups_[around[i]].bytes);
  }
  return text;
}

void Engine::give_memory_home(plan::GroupIndex group) {
  GroupState& state = groups_[group];
  Bytes pinned = 0;
  for (GroupState const& other : groups_) {
    pinned += other.home.block() && other.home.block()->is_pinned() ? other.home.block()->booked_bytes() : 0;
  }
  bool const wanted = options_.pin == Pinning::kOn || (options_.pin == Pinning::kAuto && !options_.low_memory &&
                                                       async_ && pinned + state.bytes <= options_.pinned_limit);
  if (wanted && backend_.capabilities().pinned_memory) {
    try {
      state.home = HostHome(HostBlock::pinned(backend_, state.bytes));
      return;
    } catch (std::exception const& error) {
      log_once(LogLevel::kWarning, "pin:" + backend_.device().str(),
               "the system refuses to page-lock " + format_bytes(state.bytes) + " for the group " +
                   in_quotes(state.name) + " (" + error.what() +
                   "); it stays pageable, and its copies hold up the host. Give a smaller "
                   "host_budget, or raise the limit of locked memory");
    }
  } else if (options_.pin == Pinning::kOn) {
    throw UnsupportedOperation("pin=True, and " + backend_.device().str() +
                               " has no page-locked memory: " + backend_.why_not("pinned_memory"));
  }
  state.home = HostHome(HostBlock::pageable(state.bytes));
}

void Engine::give_file_home(plan::GroupIndex group, std::vector<std::pair<plan::PageIndex, FileExtent>> extents) {
  std::vector<FileExtent> placed;
  std::vector<MemoryPart> parts;
  placed.reserve(extents.size());
  for (auto& [page, extent] : extents) {
    NORIA_ASSERT(pages_[page]->group() == group && extent.bytes == pages_[page]->bytes(), "an extent is a whole page");
    extent.group_offset = pages_[page]->offset();
    if (extent.conversion && extent.file_offset % c10::elementSize(extent.conversion->from) != 0) {
      // Reads are cut at multiples of the element's size in the file; this one's elements stand across them.
      parts.push_back({.block = HostBlock::pageable(extent.bytes), .group_offset = extent.group_offset});
      extent.read_exact(parts.back().block->data());
    } else {
      placed.push_back(std::move(extent));
    }
  }
  if (placed.empty()) {
    give_memory_home(group);
    for (plan::PageIndex page : groups_[group].pages) {
      auto const part = std::ranges::find(parts, pages_[page]->offset(), &MemoryPart::group_offset);
      if (part != parts.end()) {
        fill_home(page, part->block->data());
      }
    }
    return;
  }
  std::ranges::sort(placed, {}, [](FileExtent const& e) { return std::pair(e.file.get(), e.file_offset); });
  for (plan::PageIndex page : groups_[group].pages) {
    Bytes const offset = pages_[page]->offset();
    if (std::ranges::find(placed, offset, &FileExtent::group_offset) == placed.end() &&
        std::ranges::find(parts, offset, &MemoryPart::group_offset) == parts.end()) {
      parts.push_back({.block = HostBlock::pageable(pages_[page]->bytes()), .group_offset = offset});
    }
  }
  groups_[group].home = HostHome(std::move(placed), std::move(parts));
}

void Engine::fill_home(plan::PageIndex page, std::byte const* source) {
  auto const& block = groups_[pages_[page]->group()].home.block();
  if (block && block->is_pinned()) {
    backend_.write_pinned(home_of(page), source, pages_[page]->bytes());
  } else {
    std::memcpy(home_of(page), source, pages_[page]->bytes());
  }
}

std::byte* Engine::home_of(plan::PageIndex page) const {
  HostHome const& home = groups_[pages_[page]->group()].home;
  if (home.block()) {
    return home.block()->data() + pages_[page]->offset();
  }
  auto const part = std::ranges::find(home.parts(), pages_[page]->offset(), &MemoryPart::group_offset);
  return part != home.parts().end() ? part->block->data() : nullptr;
}

void Engine::start() {
  auto const guard = enter();
  if (async_) {
    in_stream_ = backend_.new_stream();
    out_stream_ = backend_.new_stream();
  }
  prepare_disk();
  allocate_arena();
  group_seconds_.assign(groups_.size(), -1.0);
  measuring_ =
      ahead_ && !options_.device.is_cpu() && backend_.capabilities().event_timing && residency_.streamed_bytes > 0;
  running_ = true;
  counted_by_net_ = true;
  OperatorNet::add_engine();
}

void Engine::allocate_arena() {
  Bytes total = 0;
  for (GroupState const& group : groups_) {
    total += group.bytes;
  }
  arena_bytes_ = std::min(options_.budget & ~(kGroupAlignment - 1), total);
  NORIA_ASSERT(arena_bytes_ >= residency_.resident_bytes + residency_.ring_bytes, "the plan keeps to the budget");
  if (arena_bytes_ > 0) {
    arena_ = backend_.allocate(arena_bytes_);
  }
  if (async_) {
    // The arena belongs to the stream that is current now; the copy stream may touch it once that one has come here.
    Event allocated = backend_.new_event();
    allocated.record(backend_.current_stream());
    if (keeps(Ordering::kArenaBeforeLoad)) {
      allocated.block(in_stream_);
    }
  }
  peak_arena_bytes_ = std::max(peak_arena_bytes_, arena_bytes_);
  empty_ring();
}

std::byte* Engine::device_address(plan::GroupIndex group) const {
  return static_cast<std::byte*>(arena_.get()) + groups_[group].device_offset;
}

bool Engine::any_dirty(plan::GroupIndex group) const {
  return std::ranges::any_of(groups_[group].pages,
                             [this](plan::PageIndex p) { return pages_[p]->alive() && pages_[p]->dirty(); });
}

void Engine::flush() {
  auto const guard = enter();
  bool wait = false;
  for (plan::GroupIndex g = 0; g < groups_.size(); ++g) {
    if (groups_[g].place == Place::kLoaded && any_dirty(g)) {
      write_back(g);
      wait = true;
    }
  }
  if (wait || async_) {
    drain();
  }
}

void Engine::drain() {
  BlockingRegion const region;
  if (async_) {
    ++host_syncs_;
    backend_.synchronize(out_stream_);
    ++host_syncs_;
    backend_.synchronize(in_stream_);
  } else {
    backend_.synchronize();
  }
}

void Engine::evict_all() {
  auto const guard = enter();
  for (GroupState const& group : groups_) {
    NORIA_CHECK(
        group.uses == 0, Error,
        "the group " + in_quotes(group.name) + " is in use; weights cannot be taken from the device inside a forward");
  }
  for (plan::GroupIndex g = 0; g < groups_.size(); ++g) {
    if (groups_[g].place == Place::kLoaded) {
      vacate(g);
    }
  }
  empty_ring();
  drain();
}

void Engine::resize(Bytes budget) {
  auto guard = enter();
  plan::SmallestBudget const smallest = plan::smallest_budget(costs_);
  NORIA_CHECK(budget >= smallest.bytes, BudgetError,
              "budget " + format_bytes(budget) + " is below the smallest that works, " + format_bytes(smallest.bytes) +
                  " (" + std::to_string(smallest.bytes) + " bytes): " + describe_need(smallest.largest),
              smallest.bytes);
  resize_to_ = budget;
  if (my_uses().empty()) {
    reclaim_abandoned(guard);
  }
  if (resize_to_ && present_.empty() && holds_ == 0) {
    apply_resize();
  }
}

void Engine::apply_resize() {
  Bytes const old_budget = options_.budget;
  Bytes const wanted = resize_to_.value_or(old_budget);
  resize_to_.reset();
  std::vector<plan::GroupIndex> in_use;
  try {
    for (plan::GroupIndex g = 0; g < groups_.size(); ++g) {
      if (groups_[g].place == Place::kLoaded) {
        if (groups_[g].uses > 0) {
          in_use.push_back(g);
          if (async_) {
            mark_free(g, backend_.current_stream());
          }
        }
        vacate(g);
      }
    }
  } catch (...) {
    forget_evicted();
    throw;
  }
  {
    BlockingRegion const region;
    ++host_syncs_;
    backend_.synchronize();
  }
  auto const take = [&](Bytes budget) {
    options_.budget = budget;
    empty_ring();
    plan_residency();
    allocate_arena();
  };
  arena_.clear();
  try {
    take(wanted);
  } catch (std::exception const& error) {
    log(LogLevel::kWarning, "the device has no " + format_bytes(wanted) + " for weights (" + error.what() +
                                "); the budget stays " + format_bytes(old_budget));
    take(old_budget);
  }
  for (plan::GroupIndex g : in_use) {
    NORIA_ASSERT(load(g, in_use, true), "groups in use together fit every budget that works");
    await_read(g);
    if (async_) {
      wait_ready(g, backend_.current_stream());
    }
    open_pages(g);
  }
}

std::shared_ptr<HostBlock> Engine::host_bytes(plan::PageIndex index, std::byte** data) {
  auto const guard = enter();
  Page const& page = *pages_[index];
  plan::GroupIndex const g = page.group();
  GroupState& group = groups_[g];
  if (group.place == Place::kLoaded && page.alive() && page.dirty()) {
    write_back(g);
  }
  if (group.home.block()) {
    if (!async_ && group.home.block()->is_pinned()) {
      BlockingRegion const region;
      backend_.synchronize();  // copies to page-locked memory may return early without streams of our own too
    }
    if (group.written_back.recorded() && !group.written_back.query()) {
      BlockingRegion const region;
      ++host_syncs_;
      group.written_back.synchronize();
    }
    *data = group.home.block()->data() + page.offset();
    return group.home.block();
  }
  auto copy = HostBlock::pageable(page.bytes());
  for (MemoryPart const& part : group.home.parts()) {
    if (part.group_offset == page.offset()) {
      *data = part.block->data();
      return part.block;
    }
  }
  for (FileExtent const& extent : group.home.extents()) {
    if (extent.group_offset <= page.offset() && page.offset() < extent.group_offset + extent.bytes) {
      BlockingRegion const region;
      FileExtent own = extent;  // one that is converted is a whole page
      own.file_offset += page.offset() - extent.group_offset;
      own.bytes = page.bytes();
      own.read_exact(copy->data());
    }
  }
  *data = copy->data();
  return copy;
}

void Engine::detach(plan::PageIndex index, c10::DataPtr data) {
  std::shared_ptr<Engine> keep;  // dies after the lock
  auto const guard = enter();
  keep = pages_[index]->detach(std::move(data));
}

void Engine::detach_to_home(plan::PageIndex index) {
  std::byte* data = nullptr;
  auto* const keep = new std::shared_ptr<HostBlock>(host_bytes(index, &data));
  detach(index,
         c10::DataPtr(data, keep, [](void* p) { delete static_cast<std::shared_ptr<HostBlock>*>(p); }, c10::kCPU));
}

void Engine::detach_to_device(plan::PageIndex index) {
  std::byte* data = nullptr;
  std::shared_ptr<HostBlock> const home = host_bytes(index, &data);
  c10::DataPtr memory = backend_.allocate(pages_[index]->bytes());
  c10::Stream const stream = backend_.current_stream();
  backend_.copy_to_device(memory.get(), data, pages_[index]->bytes(), stream);
  {
    BlockingRegion const region;
    backend_.synchronize(stream);  // `home` may go now
  }
  detach(index, std::move(memory));
}

plan::PageIndex Engine::index_of(Page const& page) const {
  for (plan::PageIndex p : groups_[page.group()].pages) {
    if (pages_[p].get() == &page) {
      return p;
    }
  }
  throw Error("internal error in noria, please report it: a page is in no group");
}

void Engine::stop() {
  auto guard = enter();
  running_ = false;
  note_release();
  if (std::exchange(counted_by_net_, false)) {
    OperatorNet::remove_engine();
  }
  for (plan::GroupIndex g = 0; g < groups_.size(); ++g) {
    cancel_read(g);
    groups_[g].place = Place::kEvicted;
    groups_[g].open = false;
  }
  empty_ring();
  {
    BlockingRegion const region;
    backend_.synchronize();
  }
  for (GroupState& group : groups_) {
    group.home = HostHome();  // the model's tensors keep their part of it, and give it up one by one
  }
  arena_.clear();
  arena_bytes_ = 0;
}

void Engine::on_storage_death(Page& page) noexcept {
  std::shared_ptr<Engine> keep;
  try {
    auto const guard = enter_anyway();
    keep = page.forget_storage();
  } catch (std::exception const& error) {
    log(LogLevel::kError, std::string("a storage died and its page could not be forgotten: ") + error.what());
  }
}

void Engine::count_net_fault() { net_faults_.fetch_add(1, std::memory_order_relaxed); }

Status Engine::status() {
  auto const guard = enter();
  read_stalls();
  Status out;
  out.device = backend_.device().str();
  out.budget_bytes = options_.budget;
  out.device_bytes = arena_bytes_;
  out.peak_device_bytes = peak_arena_bytes_;
  out.passes = passes_;
  out.bytes_in = bytes_in_;
  out.bytes_out = bytes_out_;
  out.loads = loads_;
  out.stalls = stalls_;
  out.stall_seconds = stall_seconds_;
  out.host_syncs = host_syncs_;
  out.net_faults = net_faults_.load();
  out.order_surprises = order_.surprises();
  if (staging_) {
    (staging_->is_pinned() ? out.host_pinned_bytes : out.host_pageable_bytes) += staging_->booked_bytes();
  }
  for (plan::GroupIndex g = 0; g < groups_.size(); ++g) {
    GroupState const& group = groups_[g];
    GroupStatus row;
    row.name = group.name;
    for (plan::PageIndex page : group.pages) {
      row.bytes += pages_[page]->bytes();
    }
    row.resident = resident(g);
    row.dirty = any_dirty(g);
    row.loads = group.loads;
    row.stalls = group.stalls;
    row.stall_seconds = group.stall_seconds;
    if (group.home.block()) {
      bool const pinned = group.home.block()->is_pinned();
      row.tier = pinned ? "pinned" : "pageable";
      (pinned ? out.host_pinned_bytes : out.host_pageable_bytes) += group.home.block()->booked_bytes();
    } else {
      row.tier = "disk";
      out.disk_bytes += group.home.disk_bytes();
    }
    out.weights_bytes += row.bytes;
    (row.resident ? out.resident_bytes : out.streamed_bytes) += row.bytes;
    out.groups.push_back(std::move(row));
  }
  return out;
}

void Engine::start_trace() {
  auto const guard = enter();
  slices_.clear();
  tracing_ = true;
  trace_begin_ = backend_.new_event(true);
  trace_begin_.record(backend_.current_stream());
}

std::vector<TraceSlice> Engine::stop_trace() {
  auto const guard = enter();
  tracing_ = false;
  {
    BlockingRegion const region;
    ++host_syncs_;
    backend_.synchronize();
  }
  std::vector<TraceSlice> out;
  out.reserve(slices_.size());
  for (PendingSlice const& slice : slices_) {
    out.push_back({.name = slice.name,
                   .row = slice.row,
                   .begin_seconds = trace_begin_.elapsed_seconds(slice.begin),
                   .end_seconds = trace_begin_.elapsed_seconds(slice.end)});
  }
  slices_.clear();
  return out;
}

}  // namespace noria

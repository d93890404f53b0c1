// Uses: a group is acquired before something reads it and released after. See Note [Uses].
#include <noria/error.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "core/log.h"
#include "engine/blocking.h"
#include "engine/engine.h"
#include "engine/net.h"
#include "engine/omission.h"

namespace noria {
namespace {

// Note [Uses]
// A use belongs to the thread that began it and to the groups it acquired together. Module hooks nest, so the uses of a
// thread are a stack. Hooks can be passed by: a KeyboardInterrupt runs none. A use left behind that way only pins its
// groups; it ends when an end() below it comes, or when the bindings find that its module is not running: at the next
// entry of the model (reclaim), or when something else finds no room (reclaim_interrupted, reclaim_abandoned).
//
// Note [Parking]
// A thread that finds no room waits until another gives some back. When all that use the engine wait, each has what
// another needs; then the latest takes what the others hold. That is safe: a waiting thread is inside acquire() and
// reads nothing, it has marked the end of its uses so far, and it brings everything back before it goes on. What an
// operator or a C++ scope uses is not taken, since an address of it may be known; nor is what hold() keeps.
//
// Note [Refusals]
// An operator whose weights find no room cannot be stopped: PyTorch swallows what its callbacks throw. It runs, and
// raises where it reads a weight that is closed. Another thread must not open that weight meanwhile, for the operator
// would read it without a use, nor change the text that is being read: it waits until the operator is over. The
// operators that it is made of may find room one by one.
//
// Note [Abandoned uses]
// An interrupt that passes the hooks by may leave uses on a thread that has ended, or does other work for ever. Whoever
// waits asks the interpreter whether that thread runs a module of the model; if not, it ends the uses in its place, and
// the thread forgets them when it comes back.

struct Refusal {
  std::uint64_t engine = 0;
  Page const* page = nullptr;
};

thread_local std::vector<Refusal> t_refusals;

std::uint32_t refusals_here(auto const& is_it) {
  return static_cast<std::uint32_t>(std::ranges::count_if(t_refusals, is_it));
}

}  // namespace

struct Use {
  plan::ModuleIndex module = plan::kNoModule;
  std::vector<plan::GroupIndex> const* groups = nullptr;  // null: the begin failed
  plan::GroupIndex single = 0;                            // when module is kNoModule
};

/// The uses of one thread and one engine, whose lock guards every change.
struct UseStack {
  std::uint64_t engine = 0;
  std::uint64_t thread = 0;
  std::vector<Use> uses;
  std::uint64_t changes = 0;
  bool waits = false;                  // inside acquire()
  std::atomic<bool> abandoned{false};  // the uses have been ended by another thread
};

namespace {

thread_local std::vector<std::shared_ptr<UseStack>> t_stacks;

std::uint64_t this_thread() { return static_cast<std::uint64_t>(::pthread_self()); }

/// Place of the latest use that `is_it`, the size when there is none.
std::size_t latest(std::vector<Use> const& uses, auto const& is_it) {
  for (std::size_t i = uses.size(); i-- > 0;) {
    if (is_it(uses[i])) {
      return i;
    }
  }
  return uses.size();
}

/// By a hook, of a module that runs: else by an operator or a C++ scope, under which no weight may move.
bool is_modules(Use const& use) { return use.module != plan::kNoModule; }

std::span<plan::GroupIndex const> groups_of(Use const& use) {
  if (use.module == plan::kNoModule) {
    return {&use.single, 1};
  }
  return use.groups != nullptr ? std::span<plan::GroupIndex const>(*use.groups) : std::span<plan::GroupIndex const>();
}

}  // namespace

std::shared_ptr<UseStack> const& Engine::stack() const {
  auto const found = std::ranges::find(t_stacks, id_, [](auto const& stack) { return stack->engine; });
  if (found != t_stacks.end()) {
    if ((*found)->abandoned.load(std::memory_order_acquire)) {
      (*found)->uses.clear();
      (*found)->abandoned.store(false, std::memory_order_release);
    }
    return *found;
  }
  // Those of engines that are gone.
  std::erase_if(t_stacks, [](auto const& stack) { return stack.use_count() == 1 && stack->uses.empty(); });
  auto stack = std::make_shared<UseStack>();
  stack->engine = id_;
  stack->thread = this_thread();
  return t_stacks.emplace_back(std::move(stack));
}

std::vector<Use>& Engine::mine() const {
  UseStack& own = *stack();
  ++own.changes;
  return own.uses;
}

std::vector<Use> const& Engine::my_uses() const { return stack()->uses; }

void Engine::arrive() {
  if (my_uses().empty()) {
    present_.push_back(stack());
  }
}

void Engine::depart() noexcept {
  if (my_uses().empty()) {
    std::erase(present_, stack());
  }
}

void Engine::begin(plan::ModuleIndex module) {
  std::vector<plan::GroupIndex> const& needs = grouping_.needs[module];
  auto lock = enter();
  bool const outermost = my_uses().empty();
  if (resize_to_ && holds_ == 0 && present_.size() == (outermost ? 0U : 1U)) {
    apply_resize();
  }
  acquire_as_user(lock, needs);
  mine().push_back({.module = module, .groups = &needs});
  last_by_module_ = true;
  passes_ += grouping_.roots[module] ? 1 : 0;
}

void Engine::note_failed_begin(plan::ModuleIndex module) {
  if (inherited()) {
    return;
  }
  auto const lock = enter();
  arrive();
  mine().push_back({.module = module});
}

void Engine::begin_groups(std::span<plan::GroupIndex const> groups) {
  auto lock = enter();
  acquire_as_user(lock, groups);
  for (plan::GroupIndex group : groups) {
    mine().push_back({.module = plan::kNoModule, .single = group});
  }
  last_by_module_ = false;
}

void Engine::acquire_as_user(std::unique_lock<std::mutex>& lock, std::span<plan::GroupIndex const> groups) {
  arrive();
  try {
    acquire(lock, groups);
  } catch (...) {
    depart();
    throw;
  }
}

void Engine::end(plan::ModuleIndex module) noexcept {
  auto const is_it = [&](Use const& use) { return use.module == module; };
  if (std::size_t const found = latest(my_uses(), is_it); found < my_uses().size()) {
    end_uses_from(found);
  }
}

void Engine::end_group(plan::GroupIndex group) noexcept {
  auto const is_it = [&](Use const& use) { return use.module == plan::kNoModule && use.single == group; };
  std::size_t const found = latest(my_uses(), is_it);
  if (found == my_uses().size() || inherited()) {
    return;
  }
  // Not the ones above: an operator's use may outlive a scope that began inside it on the same thread.
  auto const lock = enter();
  std::vector<Use>& uses = mine();
  uses.erase(uses.begin() + static_cast<std::ptrdiff_t>(found));
  release(group);
  if (uses.empty()) {
    depart();
    finish_entry();  // no hook will
  }
  note_release();
}

void Engine::hold(std::vector<plan::GroupIndex> const& groups) {
  auto lock = enter();
  NORIA_CHECK(running_, Error, "offloading of this model has not begun or has ended");
  while (my_uses().empty() && !present_.empty()) {
    // Uses of other threads end soon, and then the budget can be divided anew.
    if (!reclaim_abandoned(lock)) {
      wait_for_release(lock);
    }
  }
  for (plan::GroupIndex group : groups) {
    costs_[group].kept = true;
  }
  auto const take_back = [&] {
    for (plan::GroupIndex group : groups) {
      costs_[group].kept = groups_[group].holds > 0;
    }
    replan_due_ = true;
  };
  try {
    if (present_.empty() && holds_ == 0) {
      take_plan(choose(planned_order_));
    }
    acquire_as_user(lock, groups);
  } catch (BudgetError const& error) {
    take_back();
    throw BudgetError("the modules do not fit the budget beside the rest: " + std::string(error.what()),
                      error.smallest_bytes());
  } catch (...) {
    take_back();
    throw;
  }
  depart();  // a hold is no thread's: it may end on another
  for (plan::GroupIndex group : groups) {
    ++groups_[group].holds;
    ++holds_;
  }
}

void Engine::let_go(std::vector<plan::GroupIndex> const& groups) noexcept {
  if (inherited()) {
    return;
  }
  auto const lock = enter();
  for (plan::GroupIndex group : groups) {
    --holds_;
    costs_[group].kept = --groups_[group].holds > 0;
    release(group);
  }
  replan_due_ = true;
  finish_entry();
  note_release();
}

bool Engine::wait_for_release(std::unique_lock<std::mutex>& lock) {
  constexpr std::chrono::milliseconds kLookAgain{100};  // for uses that nobody will end
  std::uint64_t const seen = releases_;
  BlockingRegion const region;
  return released_.wait_for(lock, kLookAgain, [&] { return releases_ != seen; });
}

void Engine::note_release() noexcept {
  ++releases_;
  waiting_ = 0;
  released_.notify_all();
}

void Engine::finish_entry() noexcept {
  try {
    if (present_.empty() && holds_ == 0) {
      if (resize_to_) {
        apply_resize();
      }
      replan_if_learned();
    }
    prefetch();
  } catch (std::exception const& error) {
    // The group that needs the bytes meets the same error again, and its caller sees it.
    log(LogLevel::kDebug, std::string("loading ahead failed: ") + error.what());
  }
}

void Engine::reclaim(std::size_t keep) noexcept {
  if (keep < my_uses().size()) {
    end_uses_from(keep);
  }
}

void Engine::end_uses_from(std::size_t first) noexcept {
  if (inherited()) {
    return;
  }
  auto const lock = enter();
  std::vector<Use>& uses = mine();
  while (uses.size() > first) {
    for (plan::GroupIndex group : groups_of(uses.back())) {
      release(group);
    }
    uses.pop_back();
  }
  depart();
  finish_entry();
  note_release();
}

void Engine::reclaim_interrupted(std::unique_lock<std::mutex>& lock) {
  if (std::ranges::none_of(my_uses(), is_modules) || interpreter().runs == nullptr) {
    return;
  }
  lock.unlock();
  bool const runs = interpreter().runs(*this, this_thread());
  lock = lock_politely(mutex_);
  if (runs) {
    return;
  }
  for (Use const& use : my_uses()) {
    if (is_modules(use)) {
      for (plan::GroupIndex group : groups_of(use)) {
        release(group);
      }
    }
  }
  std::erase_if(mine(), is_modules);
}

bool Engine::reclaim_abandoned(std::unique_lock<std::mutex>& lock) {
  struct Suspect {
    std::shared_ptr<UseStack> stack;
    std::uint64_t changes;
  };
  std::vector<Suspect> suspects;
  for (std::shared_ptr<UseStack> const& other : present_) {
    bool const by_hooks = !other->uses.empty() && std::ranges::all_of(other->uses, is_modules);
    if (interpreter().runs != nullptr && other != stack() && !other->waits && by_hooks) {
      suspects.push_back({.stack = other, .changes = other->changes});
    }
  }
  if (suspects.empty()) {
    return false;
  }
  lock.unlock();
  std::erase_if(suspects, [&](Suspect const& s) { return interpreter().runs(*this, s.stack->thread); });
  lock = lock_politely(mutex_);
  bool any = false;
  for (Suspect const& suspect : suspects) {
    bool const same = suspect.stack->changes == suspect.changes && !suspect.stack->waits;
    if (same && std::erase(present_, suspect.stack) > 0) {
      for (Use const& use : suspect.stack->uses) {
        for (plan::GroupIndex group : groups_of(use)) {
          release(group);
        }
      }
      suspect.stack->abandoned.store(true, std::memory_order_release);
      any = true;
    }
  }
  if (any) {
    finish_entry();
    note_release();
  }
  return any;
}

std::vector<plan::ModuleIndex> Engine::uses_of_this_thread() const {
  std::vector<plan::ModuleIndex> out;
  for (Use const& use : my_uses()) {
    out.push_back(use.module);
  }
  return out;
}

bool Engine::in_use_here(plan::GroupIndex group) const {
  return std::ranges::any_of(
      my_uses(), [&](Use const& use) { return std::ranges::find(groups_of(use), group) != groups_of(use).end(); });
}

void Engine::acquire(std::unique_lock<std::mutex>& lock, std::span<plan::GroupIndex const> groups) {
  NORIA_CHECK(running_, Error, "offloading of this model has not begun or has ended");
  refuse_capture(groups);
  // All are taken first, so that bringing one in does not send another out.
  for (plan::GroupIndex group : groups) {
    ++groups_[group].uses;
  }
  bool const demanded = std::ranges::any_of(groups, [&](auto g) { return groups_[g].place != Place::kLoaded; });
  bool reclaimed = false;
  bool all_waited = false;
  bool was_taken = false;  // may have been: what this thread uses already
  try {
    for (plan::GroupIndex group : groups) {
      if (last_group_ != group) {
        order_.record(group);
        last_group_ = group;
      }
    }
    for (;;) {
      if (refused_elsewhere(groups)) {
        if (present_.size() - 1 <= waiting_) {
          // All wait. The one whose operator it is may find that it has to give up; if not, operators of two threads
          // wait for each other, and this one gives up.
          if (std::exchange(all_waited, true)) {
            throw_no_room(groups.front());
          }
          note_release();
        }
        wait_for_room(lock, groups);
        was_taken = true;
        continue;
      }
      std::optional<plan::GroupIndex> const group = missing(groups);
      if (!group) {
        break;
      }
      was_taken = was_taken || std::ranges::find(groups, *group) == groups.end();
      if (load(*group, groups, true) || compact(groups)) {
        continue;
      }
      if (!std::exchange(reclaimed, true)) {
        reclaim_interrupted(lock);
        reclaim_abandoned(lock);
        continue;  // the lock was free meanwhile: look again
      }
      if (give_up_residents(*group)) {
        continue;
      }
      bool const others_run = present_.size() - 1 > waiting_;  // this thread is counted already
      if (others_run && !may_be_awaited()) {
        wait_for_room(lock, groups);
        was_taken = true;
      } else if (!take_from_parked()) {
        throw_no_room(*group);
      }
    }
    c10::Stream const stream = backend_.current_stream();
    if (was_taken) {
      open_again(lock, stream);
    }
    for (plan::GroupIndex group : groups) {
      await_read(lock, group);
    }
    UseProbe probe{.group = groups.empty() ? 0 : groups.back(), .before = {}, .after = {}};
    if (measuring_ && !groups.empty()) {
      probe.before = timing_event();
      probe.before.record(stream);
    }
    for (plan::GroupIndex group : groups) {
      if (async_) {
        wait_ready(group, stream);
      }
      if (!groups_[group].open) {
        open_pages(group);
      }
      groups_[group].used_since_load = true;
      if (tracing_) {
        groups_[group].use_begins.push_back(timing_event());
        groups_[group].use_begins.back().record(stream);
      }
    }
    if (probe.before) {
      probe.after = timing_event();
      probe.after.record(stream);
      use_probes_.push_back(std::move(probe));
      constexpr std::size_t kMostProbes = 8192;  // an order that is not learned by then may never be
      if (use_probes_.size() == kMostProbes) {
        stop_measuring();
      }
    }
  } catch (...) {
    for (plan::GroupIndex group : groups) {
      --groups_[group].uses;
    }
    note_release();
    throw;
  }
  if (demanded) {
    prefetch();
  }
}

void Engine::refuse_capture(std::span<plan::GroupIndex const> groups) const {
  if (options_.device.is_cpu() || !backend_.capabilities().streams || !backend_.current_stream().is_capturing()) {
    return;
  }
  bool const stay = std::ranges::all_of(groups, [this](auto g) { return groups_[g].place == Place::kLoaded; });
  NORIA_CHECK(stay && residency_.streamed_bytes == 0, UnsupportedOperation,
              "a graph is being captured on this stream, and its replays would read weights at the addresses that they "
              "have now, which change as weights come and go. Capture with a budget of all weights and after a first "
              "pass, or do without graphs");
}

std::optional<plan::GroupIndex> Engine::missing(std::span<plan::GroupIndex const> wanted) const {
  auto const is_missing = [this](plan::GroupIndex g) { return groups_[g].place != Place::kLoaded; };
  for (Use const& use : my_uses()) {
    auto const found = std::ranges::find_if(groups_of(use), is_missing);
    if (found != groups_of(use).end()) {
      return *found;
    }
  }
  auto const found = std::ranges::find_if(wanted, is_missing);
  return found != wanted.end() ? std::optional(*found) : std::nullopt;
}

void Engine::wait_for_room(std::unique_lock<std::mutex>& lock, std::span<plan::GroupIndex const> wanted) {
  std::vector<plan::GroupIndex> parked(wanted.begin(), wanted.end());
  for (Use const& use : my_uses()) {
    if (is_modules(use)) {
      for (plan::GroupIndex group : groups_of(use)) {
        parked.push_back(group);
        if (async_ && groups_[group].place == Place::kLoaded && !resident(group)) {
          mark_free(group, backend_.current_stream());
        }
      }
    }
  }
  for (plan::GroupIndex group : parked) {
    ++groups_[group].parked;
  }
  ++waiting_;
  stack()->waits = true;
  bool const released = wait_for_release(lock);
  stack()->waits = false;
  for (plan::GroupIndex group : parked) {
    --groups_[group].parked;
  }
  if (!released) {
    --waiting_;  // a release sets it to none
    reclaim_abandoned(lock);
  }
  NORIA_CHECK(running_, Error, "offloading of this model has ended while this thread waited for room");
}

bool Engine::take_from_parked() {
  bool any = false;
  for (plan::GroupIndex g = 0; g < groups_.size(); ++g) {
    GroupState const& group = groups_[g];
    if (group.place == Place::kLoaded && group.uses > 0 && !in_use(g) && !resident(g)) {
      vacate(g);
      ring_.remove(g);
      any = true;
    }
  }
  return any;
}

void Engine::open_again(std::unique_lock<std::mutex>& lock, c10::Stream stream) {
  for (Use const& use : my_uses()) {
    for (plan::GroupIndex group : groups_of(use)) {
      await_read(lock, group);
      if (async_) {
        wait_ready(group, stream);
      }
      if (!groups_[group].open) {
        open_pages(group);
      }
    }
  }
}

bool Engine::refuse(Page& page, std::string const& why) noexcept {
  auto const guard = enter_anyway();
  if (page.is_open() && !inherited()) {
    return false;
  }
  std::uint32_t const here = refusals_here([&](Refusal const& refusal) { return refusal.page == &page; });
  if (page.refusals()++ == here) {  // else another thread may be reading the text
    page.refuse("could not be brought to the device: " + why);
  }
  ++groups_[page.group()].refused;
  t_refusals.push_back({.engine = id_, .page = &page});
  return true;
}

void Engine::allow(Page& page) noexcept {
  auto const guard = enter_anyway();
  auto const found = std::ranges::find(t_refusals, &page, &Refusal::page);
  if (found != t_refusals.end()) {
    t_refusals.erase(found);
    --page.refusals();
    --groups_[page.group()].refused;
    note_release();
  }
}

bool Engine::refused_elsewhere(std::span<plan::GroupIndex const> wanted) const {
  return std::ranges::any_of(wanted, [this](plan::GroupIndex group) {
    auto const is_it = [&](Refusal const& refusal) { return refusal.engine == id_ && refusal.page->group() == group; };
    return groups_[group].refused > 0 && groups_[group].refused > refusals_here(is_it);
  });
}

bool Engine::may_be_awaited() const {
  // The backward of a device runs on a thread of its own, and the one that asked for it waits, with its uses open.
  if (options_.device.is_cpu() || !OperatorNet::in_backward()) {
    return false;
  }
  return std::ranges::any_of(present_, [this](std::shared_ptr<UseStack> const& other) {
    bool const asks = interpreter().awaits_backward != nullptr;
    return other != stack() && !other->waits && (!asks || interpreter().awaits_backward(other->thread));
  });
}

Bytes Engine::largest_gap() const {
  std::vector<std::pair<Bytes, Bytes>> taken;
  for (plan::GroupIndex g = 0; g < groups_.size(); ++g) {
    if (groups_[g].place == Place::kLoaded && in_use(g)) {
      taken.emplace_back(groups_[g].device_offset, groups_[g].device_offset + groups_[g].bytes);
    }
  }
  std::ranges::sort(taken);
  Bytes gap = 0;
  Bytes end = 0;
  for (auto const& [begin, next] : taken) {
    gap = std::max(gap, begin - end);
    end = next;
  }
  return std::max(gap, arena_bytes_ - end);
}

bool Engine::give_up_residents(plan::GroupIndex wanted) {
  if (residency_.resident_bytes == 0 || holds_ > 0 || largest_gap() < groups_[wanted].bytes) {
    return false;
  }
  settle();  // residents are used without marks
  for (plan::GroupIndex g = 0; g < groups_.size(); ++g) {
    if (groups_[g].place == Place::kLoaded && resident(g) && !in_use(g)) {
      vacate(g);
    }
  }
  residency_ = plan::no_residents(costs_, arena_bytes_);
  replan_due_ = true;
  empty_ring();
  for (plan::GroupIndex g = 0; g < groups_.size(); ++g) {
    if (groups_[g].place == Place::kLoaded) {
      ring_.put(g, groups_[g].device_offset, groups_[g].bytes);
    }
  }
  return true;
}

void Engine::throw_no_room(plan::GroupIndex group) const {
  Bytes held = 0;
  Bytes pieces = 1;
  Bytes needed = 0;
  Bytes largest = 0;
  for (GroupState const& state : groups_) {
    bool const is_held = state.uses > 0 && state.place == Place::kLoaded;
    held += is_held ? state.bytes : 0;
    pieces += is_held ? 1 : 0;
    needed += state.uses > 0 ? state.bytes : 0;
    largest = std::max(largest, state.bytes);
  }
  bool const fixed = std::ranges::any_of(my_uses(), [](Use const& use) { return !is_modules(use); });
  if (fixed) {
    needed = held + pieces * largest;  // then one of the gaps around what may not move has room for any group
  }
  throw BudgetError("there is no room for " + describe_need(group) + ": " + format_bytes(held) + " of the budget of " +
                        format_bytes(options_.budget) + " are in use by what is running now" +
                        (fixed ? ", and may not move" : "") + ". Give a budget of at least " + format_bytes(needed) +
                        " (" + std::to_string(needed) + " bytes)",
                    needed);
}

bool Engine::compact(std::span<plan::GroupIndex const> wanted) {
  std::vector<plan::GroupIndex> held;
  Bytes held_bytes = 0;
  Bytes missing_bytes = 0;
  bool may_move = true;
  for (plan::GroupIndex g = 0; g < groups_.size(); ++g) {
    if (!in_use(g)) {
      continue;
    }
    if (groups_[g].place != Place::kLoaded) {
      missing_bytes += groups_[g].bytes;
      continue;
    }
    auto movable = static_cast<std::uint32_t>(std::ranges::count(wanted, g)) + groups_[g].parked;
    for (Use const& use : my_uses()) {
      movable += is_modules(use) ? static_cast<std::uint32_t>(std::ranges::count(groups_of(use), g)) : 0;
    }
    if (movable != groups_[g].uses) {
      return false;  // its address may be known: another thread reads it, or an operator or a scope is under way
    }
    may_move = may_move && groups_[g].holds == 0;
    if (!resident(g)) {
      held.push_back(g);
    }
    held_bytes += groups_[g].bytes;
  }
  // What is held stands in a row from the high edge afterwards; if it does already, moving gains nothing.
  Bytes row_bytes = 0;
  bool in_a_row = true;
  std::ranges::sort(held, std::greater{}, [this](plan::GroupIndex g) { return groups_[g].device_offset; });
  for (plan::GroupIndex g : held) {
    row_bytes += groups_[g].bytes;
    in_a_row = in_a_row && groups_[g].device_offset == arena_bytes_ - row_bytes;
  }
  bool const ring_suffices = row_bytes + missing_bytes <= arena_bytes_ - residency_.resident_bytes;
  bool const arena_suffices = residency_.resident_bytes > 0 && held_bytes + missing_bytes <= arena_bytes_;
  if (!may_move || (ring_suffices ? held.empty() || in_a_row : !arena_suffices)) {
    return false;
  }
  bool const give_up_residents = !ring_suffices;
  for (plan::GroupIndex g = 0; g < groups_.size(); ++g) {
    if (groups_[g].place != Place::kLoaded || (resident(g) && !give_up_residents)) {
      continue;
    }
    if (async_ && in_use(g) && !resident(g)) {
      mark_free(g, backend_.current_stream());
    }
    if (resident(g) && in_use(g)) {
      held.push_back(g);
    }
    vacate(g);
  }
  if (give_up_residents) {
    residency_ = plan::no_residents(costs_, arena_bytes_);
    replan_due_ = true;
  }
  empty_ring();
  for (plan::GroupIndex g : held) {
    bool const was_nested = std::exchange(groups_[g].nested, true);
    bool const placed = load(g, held, true);
    groups_[g].nested = was_nested;
    NORIA_ASSERT(placed, "groups that fitted before fit in an empty ring");
    await_read(g);
    if (async_) {
      wait_ready(g, backend_.current_stream());
    }
    open_pages(g);
  }
  return true;
}

void Engine::release(plan::GroupIndex index) noexcept {
  GroupState& group = groups_[index];
  if (group.uses == 0 || !running_) {
    return;
  }
  --group.uses;
  group.last_use = ++clock_;
  if (tracing_ && !group.use_begins.empty()) {
    Event begin = std::move(group.use_begins.back());
    group.use_begins.pop_back();
    note_slice(index, "compute", std::move(begin), backend_.current_stream());
  }
  if (group.place != Place::kLoaded || (resident(index) && !resize_to_)) {
    return;
  }
  if (async_) {
    mark_free(index, backend_.current_stream());
  }
  if (group.uses == 0 && !resident(index)) {
    close_pages(index);
  }
}

void Engine::open_pages(plan::GroupIndex group) {
  std::byte* const address = device_address(group);
  for (plan::PageIndex page : groups_[group].pages) {
    pages_[page]->open(address + pages_[page]->offset());
  }
  groups_[group].open = true;
}

void Engine::close_pages(plan::GroupIndex group) {
  for (plan::PageIndex page : groups_[group].pages) {
    pages_[page]->close();
  }
  groups_[group].open = false;
}

void Engine::mark_free(plan::GroupIndex index, c10::Stream stream) {
  GroupState& group = groups_[index];
  for (std::size_t i = 0; i < group.marks_in_use; ++i) {
    if (group.marks[i].stream == stream) {
      group.marks[i].event.record(stream);  // later on the same stream: stands for the earlier mark too
      return;
    }
  }
  if (group.marks_in_use == group.marks.size()) {
    group.marks.push_back({.stream = stream, .event = backend_.new_event()});
  }
  FreeMark& mark = group.marks[group.marks_in_use++];
  mark.stream = stream;
  mark.event.record(stream);
}

void Engine::wait_ready(plan::GroupIndex index, c10::Stream stream) {
  GroupState& group = groups_[index];
  if (std::ranges::find(group.waited, stream) != group.waited.end()) {
    return;
  }
  group.waited.push_back(stream);
  if (backend_.capabilities().event_timing) {
    StallProbe probe{.group = index, .before = timing_event(), .after = timing_event()};
    probe.before.record(stream);
    if (keeps(Ordering::kReady)) {
      group.ready.block(stream);
    }
    probe.after.record(stream);
    probes_.push_back(std::move(probe));
    if (probes_.size() > 256) {
      read_stalls();
    }
  } else if (keeps(Ordering::kReady)) {
    group.ready.block(stream);
  }
}

Event Engine::timing_event() {
  if (spare_timing_events_.empty()) {
    return backend_.new_event(true);
  }
  Event event = std::move(spare_timing_events_.back());
  spare_timing_events_.pop_back();
  return event;
}

void Engine::read_stalls() {
  // A wait shorter than this is the cost of two event records, not a stall.
  constexpr double kNoticeableSeconds = 5e-6;
  while (!probes_.empty() && probes_.front().after.query()) {
    StallProbe probe = std::move(probes_.front());
    probes_.pop_front();
    double const seconds = probe.before.elapsed_seconds(probe.after);
    if (seconds > kNoticeableSeconds) {
      ++stalls_;
      stall_seconds_ += seconds;
      ++groups_[probe.group].stalls;
      groups_[probe.group].stall_seconds += seconds;
    }
    spare_timing_events_.push_back(std::move(probe.before));
    spare_timing_events_.push_back(std::move(probe.after));
  }
}

void Engine::note_slice(plan::GroupIndex group, char const* row, Event begin, c10::Stream stream) {
  Event end = timing_event();
  end.record(stream);
  slices_.push_back({.name = groups_[group].name, .row = row, .begin = std::move(begin), .end = std::move(end)});
}

}  // namespace noria

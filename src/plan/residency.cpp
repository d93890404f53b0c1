#include "plan/residency.h"

#include <fmt/format.h>
#include <noria/error.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "plan/steady_pass.h"

namespace noria::plan {
namespace {

class Chooser {
 public:
  Chooser(std::span<GroupUse const> groups, std::span<GroupIndex const> order, Bytes budget, std::uint32_t depth)
      : groups_(groups), order_(order), budget_(budget), depth_(depth) {}

  [[nodiscard]] Bytes ring_budget() const {
    Residency plan;
    plan.resident.assign(groups_.size(), false);
    plan.depth = depth_;
    return ring_need(plan);
  }

  /// What the rest of the budget goes to.
  enum class Rest { kEvenly, kLargestFirst, kRing };

  /// A plan in which all groups larger than `limit` are residents, and the ring holds `depth` groups in a row; nothing
  /// when that does not fit.
  [[nodiscard]] std::optional<Residency> with_residents_above(Bytes limit, std::uint32_t depth, Rest rest) const {
    Residency plan;
    plan.resident.assign(groups_.size(), false);
    for (GroupIndex i = 0; i < groups_.size(); ++i) {
      if (groups_[i].bytes > limit || groups_[i].kept) {
        make_resident(plan, i);
      }
    }
    if (plan.resident_bytes > budget_) {
      return std::nullopt;
    }
    plan.depth = depth;
    plan.ring_bytes = ring_need(plan);
    if (plan.resident_bytes + plan.ring_bytes > budget_) {
      return std::nullopt;
    }
    if (rest != Rest::kRing) {
      plan = filled(plan, rest);
    }
    plan.streamed_bytes = streamed(plan);
    return plan;
  }

  /// Everything is streamed.
  [[nodiscard]] Residency streaming() const {
    Residency plan = no_residents(groups_, 0);
    plan.ring_bytes = ring_need(plan);
    plan.streamed_bytes = streamed(plan);
    return plan;
  }

  /// `plan` without the resident `out`, for a larger ring.
  [[nodiscard]] std::optional<Residency> without(Residency plan, GroupIndex out) const {
    make_streamed(plan, out);
    plan.depth = 1;
    plan.ring_bytes = ring_need(plan);
    if (plan.resident_bytes + plan.ring_bytes > budget_) {
      return std::nullopt;
    }
    plan.streamed_bytes = streamed(plan);
    return plan;
  }

  /// `plan` with `in` a resident instead of `out`, or of the smallest ones when `out` is nothing; with whatever else
  /// then fits. Nothing when there is no room for that.
  [[nodiscard]] std::optional<Residency> changed(Residency plan, std::optional<GroupIndex> out, GroupIndex in) const {
    plan.depth = 1;
    make_resident(plan, in);
    if (out) {
      make_streamed(plan, *out);
    }
    plan.ring_bytes = ring_need(plan);
    while (!out && plan.resident_bytes + plan.ring_bytes > budget_) {
      std::optional<GroupIndex> smallest;
      for (GroupIndex i = 0; i < groups_.size(); ++i) {
        bool const may_go = plan.resident[i] && i != in && !groups_[i].kept && groups_[i].bytes > 0;
        if (may_go && (!smallest || groups_[i].bytes < groups_[*smallest].bytes)) {
          smallest = i;
        }
      }
      if (!smallest) {
        return std::nullopt;
      }
      make_streamed(plan, *smallest);
      plan.ring_bytes = ring_need(plan);
    }
    if (plan.resident_bytes + plan.ring_bytes > budget_) {
      return std::nullopt;
    }
    fill_what_fits(plan);
    plan.ring_bytes = ring_need(plan);
    if (plan.resident_bytes + plan.ring_bytes > budget_) {
      return std::nullopt;
    }
    plan.streamed_bytes = streamed(plan);
    return plan;
  }

 private:
  void make_resident(Residency& plan, GroupIndex group) const {
    plan.resident[group] = true;
    plan.resident_bytes += groups_[group].bytes;
  }

  void make_streamed(Residency& plan, GroupIndex group) const {
    plan.resident[group] = false;
    plan.resident_bytes -= groups_[group].bytes;
  }

  [[nodiscard]] Bytes streamed(Residency const& plan) const {
    Bytes sum = 0;
    for (GroupIndex i = 0; i < groups_.size(); ++i) {
      sum += plan.resident[i] ? 0 : groups_[i].bytes * groups_[i].uses;
    }
    return sum;
  }

  /// Largest total of the streamed groups needed by `plan.depth` streamed uses in a row, across the end of the pass.
  [[nodiscard]] Bytes ring_need(Residency const& plan) const {
    std::vector<GroupIndex> uses;
    for (GroupIndex use : order_) {
      if (!plan.resident[use] && (uses.empty() || uses.back() != use)) {
        uses.push_back(use);
      }
    }
    Bytes need = 0;
    std::set<GroupIndex> together;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      together.clear();
      for (std::size_t k = 0; k < std::min<std::size_t>(plan.depth, uses.size()); ++k) {
        GroupIndex const use = uses[(i + k) % uses.size()];
        together.insert(use);
        for (GroupIndex around : groups_[use].around) {
          if (!plan.resident[around]) {
            together.insert(around);
          }
        }
      }
      Bytes sum = 0;
      for (GroupIndex group : together) {
        sum += groups_[group].bytes;
      }
      need = std::max(need, sum);
    }
    // Groups that the order does not hold (an unused branch) must still fit when they come.
    for (GroupIndex i = 0; i < groups_.size(); ++i) {
      if (!plan.resident[i]) {
        Bytes sum = groups_[i].bytes;
        for (GroupIndex around : groups_[i].around) {
          sum += plan.resident[around] ? 0 : groups_[around].bytes;
        }
        need = std::max(need, sum);
      }
    }
    return need;
  }

  [[nodiscard]] Bytes left(Residency const& plan) const { return budget_ - plan.resident_bytes - plan.ring_bytes; }

  /// `base` with residents in what is left. A resident between two large groups makes them neighbours, so the ring may
  /// have to grow with it: try with a larger ring until both fit.
  [[nodiscard]] Residency filled(Residency const& base, Rest rest) const {
    Residency plan = base;
    for (int round = 0; round < 8 && plan.resident_bytes + plan.ring_bytes <= budget_; ++round) {
      Bytes const reserved = plan.ring_bytes;
      fill_often_used(plan);
      if (rest == Rest::kLargestFirst) {
        fill_largest_first(plan);
      } else {
        fill_evenly(plan, streamed_in_order(plan));
      }
      fill_what_fits(plan);
      plan.ring_bytes = ring_need(plan);
      if (plan.resident_bytes + plan.ring_bytes <= budget_) {
        return plan;
      }
      Bytes const wanted = std::max(plan.ring_bytes, reserved + 1);
      plan = base;
      plan.ring_bytes = wanted;
    }
    return base;
  }

  void fill_often_used(Residency& plan) const {
    std::vector<GroupIndex> often;
    for (GroupIndex i = 0; i < groups_.size(); ++i) {
      if (!plan.resident[i] && groups_[i].uses > 1) {
        often.push_back(i);
      }
    }
    std::ranges::stable_sort(often, [this](GroupIndex a, GroupIndex b) { return groups_[a].uses > groups_[b].uses; });
    for (GroupIndex group : often) {
      if (groups_[group].bytes <= left(plan)) {
        make_resident(plan, group);
      }
    }
  }

  void fill_largest_first(Residency& plan) const {
    std::map<Bytes, std::vector<GroupIndex>, std::greater<>> by_size;
    for (GroupIndex group : streamed_in_order(plan)) {
      by_size[groups_[group].bytes].push_back(group);
    }
    for (auto const& [size, same] : by_size) {
      fill_evenly(plan, same);
    }
  }

  void fill_evenly(Residency& plan, std::vector<GroupIndex> const& rest) const {
    Bytes total = 0;
    for (GroupIndex group : rest) {
      total += groups_[group].bytes;
    }
    if (total == 0) {
      return;
    }
    double const share = std::min(1.0, static_cast<double>(left(plan)) / static_cast<double>(total));
    double owed = 0.0;  // bytes of residents due so far: Bresenham's line over bytes
    for (GroupIndex group : rest) {
      auto const bytes = static_cast<double>(groups_[group].bytes);
      owed += share * bytes;
      if (owed >= 0.5 * bytes && groups_[group].bytes <= left(plan)) {
        make_resident(plan, group);
        owed -= bytes;
      }
    }
  }

  /// The last few bytes: whatever fits, taken from the middle of the longest run of streamed groups.
  void fill_what_fits(Residency& plan) const {
    for (;;) {
      std::vector<GroupIndex> const rest = streamed_in_order(plan);
      std::optional<GroupIndex> pick;
      for (std::size_t i = 0; i < rest.size(); ++i) {
        GroupIndex const group = rest[(i + rest.size() / 2) % rest.size()];
        if (groups_[group].bytes <= left(plan) && (!pick || groups_[group].bytes > groups_[*pick].bytes)) {
          pick = group;
        }
      }
      if (!pick) {
        return;
      }
      make_resident(plan, *pick);
    }
  }

  [[nodiscard]] std::vector<GroupIndex> streamed_in_order(Residency const& plan) const {
    std::vector<GroupIndex> out;
    std::vector<bool> seen(groups_.size(), false);
    for (GroupIndex use : order_) {
      if (!plan.resident[use] && !seen[use] && groups_[use].bytes > 0) {
        out.push_back(use);
        seen[use] = true;
      }
    }
    return out;
  }

  std::span<GroupUse const> groups_;
  std::span<GroupIndex const> order_;
  Bytes budget_;
  std::uint32_t depth_;
};

/// Compares plans by the seconds of their steady pass. Remembers how much it has simulated, so that planning stays
/// quick for very many groups; beyond that it compares the bytes that are streamed.
class Judge {
 public:
  Judge(std::span<GroupUse const> groups, std::span<GroupIndex const> order, Bytes budget, std::uint32_t depth,
        Speeds const* speeds)
      : groups_(groups), order_(order), budget_(budget), depth_(depth), speeds_(speeds) {}

  /// Whether `plans` more can be simulated without a wait that one would notice.
  [[nodiscard]] bool may_simulate(std::size_t plans = 1) const {
    return speeds_ != nullptr && simulated_ + plans * order_.size() <= kMostUses;
  }

  double seconds(Residency const& plan) {
    simulated_ += order_.size();
    Residency real = plan;
    real.ring_bytes = budget_ - plan.resident_bytes;  // what nobody needs makes the ring larger
    return steady_seconds(groups_, order_, real, *speeds_);
  }

  /// Bytes to wait for. With a ring of one group where two were wanted no copy hides behind computation; half as much
  /// again stands for the computation that waits.
  [[nodiscard]] double bytes(Residency const& plan) const {
    auto const bytes = static_cast<double>(plan.streamed_bytes);
    return plan.depth < std::min<std::uint32_t>(depth_, 2) ? 1.5 * bytes : bytes;
  }

  /// No pass that streams as much can be quicker.
  [[nodiscard]] double least_seconds(Residency const& plan) const {
    double computing = 0.0;
    for (double seconds : speeds_->use_seconds) {
      computing += seconds;
    }
    return std::max(computing, static_cast<double>(plan.streamed_bytes) / speeds_->bytes_per_second);
  }

 private:
  static constexpr std::size_t kMostUses = 10'000;

  std::span<GroupUse const> groups_;
  std::span<GroupIndex const> order_;
  Bytes budget_;
  std::uint32_t depth_;
  Speeds const* speeds_;
  std::size_t simulated_ = 0;
};

/// Exchanges residents for streamed groups for as long as that makes the pass quicker.
void improve(Residency& best, Chooser const& chooser, Judge& judge, std::span<GroupUse const> groups) {
  constexpr double kGoodEnough = 1.005;
  constexpr double kQuicker = 0.999;
  double seconds = judge.seconds(best);
  auto const improves = [&](std::optional<GroupIndex> out, std::optional<GroupIndex> in) {
    if ((in && best.resident[*in]) || (out && (!best.resident[*out] || groups[*out].kept)) || !judge.may_simulate()) {
      return false;
    }
    std::optional<Residency> changed = in ? chooser.changed(best, out, *in) : chooser.without(best, *out);
    if (double const now = changed ? judge.seconds(*changed) : seconds; now < kQuicker * seconds) {
      best = *std::move(changed);
      seconds = now;
      return true;
    }
    return false;
  };
  for (bool improved = true; improved && seconds > kGoodEnough * judge.least_seconds(best);) {
    improved = false;
    for (GroupIndex in = 0; in < groups.size() && !improved; ++in) {
      improved = improves(std::nullopt, in) || improves(in, std::nullopt);
      for (GroupIndex out = 0; out < groups.size() && !improved; ++out) {
        improved = improves(out, in);
      }
    }
  }
}

}  // namespace

SmallestBudget smallest_budget(std::span<GroupUse const> groups) {
  Bytes kept = 0;
  for (GroupUse const& group : groups) {
    kept += group.kept ? group.bytes : 0;
  }
  SmallestBudget smallest{.bytes = kept};
  for (GroupIndex i = 0; i < groups.size(); ++i) {
    Bytes sum = kept + (groups[i].kept ? 0 : groups[i].bytes);
    for (GroupIndex around : groups[i].around) {
      sum += groups[around].kept ? 0 : groups[around].bytes;
    }
    if (sum > smallest.bytes) {
      smallest = {.bytes = sum, .largest = i};
    }
  }
  return smallest;
}

Bytes ring_budget(std::span<GroupUse const> groups, std::span<GroupIndex const> order, std::uint32_t depth) {
  return Chooser(groups, order, 0, depth).ring_budget();
}

Residency choose_residents(std::span<GroupUse const> groups, std::span<GroupIndex const> order, Bytes budget,
                           std::uint32_t depth, Speeds const* speeds) {
  SmallestBudget const smallest = smallest_budget(groups);
  NORIA_CHECK(
      budget >= smallest.bytes, BudgetError,
      fmt::format("budget {} is below the smallest that works, {}", format_bytes(budget), format_bytes(smallest.bytes)),
      smallest.bytes);
  std::set<Bytes, std::greater<>> sizes;
  for (GroupUse const& group : groups) {
    sizes.insert(group.bytes);
  }
  Chooser const chooser(groups, order, budget, std::max<std::uint32_t>(depth, 1));
  Judge judge(groups, order, budget, depth, speeds);
  std::vector<Residency> plans;
  constexpr std::size_t kMostSizes = 64;
  for (std::uint32_t rows = std::max<std::uint32_t>(depth, 1); rows >= 1; --rows) {
    std::size_t tried = 0;
    for (Bytes limit : sizes) {
      for (auto rest : {Chooser::Rest::kEvenly, Chooser::Rest::kLargestFirst, Chooser::Rest::kRing}) {
        if (std::optional<Residency> plan = chooser.with_residents_above(limit, rows, rest)) {
          plans.push_back(*std::move(plan));
        }
      }
      if (++tried == kMostSizes) {
        break;
      }
    }
  }
  bool const simulate = judge.may_simulate(plans.size() + 1);
  if (simulate && std::ranges::none_of(groups, &GroupUse::kept)) {
    plans.push_back(chooser.streaming());
  }
  std::optional<Residency> best;
  double least = std::numeric_limits<double>::infinity();
  for (Residency& plan : plans) {
    double const cost = simulate ? judge.seconds(plan) : judge.bytes(plan);
    // Among equals the one that moves fewer bytes: others may want the link.
    constexpr double kEqual = 1.001;
    bool const fewer = best && plan.streamed_bytes < best->streamed_bytes;
    if (cost * kEqual < least || (fewer && cost < least * kEqual)) {
      least = cost;
      best = std::move(plan);
    }
  }
  if (std::optional<Residency> all = chooser.with_residents_above(0, 1, Chooser::Rest::kRing);
      all && all->streamed_bytes == 0) {
    best = std::move(all);
  }
  NORIA_ASSERT(best.has_value(), "the smallest budget fits with no residents");
  if (simulate && best->streamed_bytes > 0) {
    improve(*best, chooser, judge, groups);
  }
  best->offsets.assign(groups.size(), 0);
  Bytes offset = 0;
  for (GroupIndex i = 0; i < groups.size(); ++i) {
    if (best->resident[i]) {
      best->offsets[i] = offset;
      offset += groups[i].bytes;
    }
  }
  return *best;
}

Residency no_residents(std::span<GroupUse const> groups, Bytes ring_bytes) {
  Residency out;
  out.resident.assign(groups.size(), false);
  out.offsets.assign(groups.size(), 0);
  out.ring_bytes = ring_bytes;
  out.depth = 1;
  for (GroupUse const& group : groups) {
    out.streamed_bytes += group.bytes;
  }
  return out;
}

}  // namespace noria::plan

#include "plan/residency.h"

#include <fmt/format.h>
#include <noria/error.h>

#include <algorithm>
#include <optional>
#include <set>

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

  /// The best found when all groups larger than `limit` are residents; nothing when that does not fit.
  std::optional<Residency> with_residents_above(Bytes limit) {
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
    for (plan.depth = depth_; plan.depth >= 1; --plan.depth) {
      plan.ring_bytes = ring_need(plan);
      if (plan.resident_bytes + plan.ring_bytes <= budget_) {
        break;
      }
    }
    if (plan.depth == 0) {
      return std::nullopt;
    }
    plan = filled(plan);
    plan.streamed_bytes = streamed(plan);
    return plan;
  }

 private:
  void make_resident(Residency& plan, GroupIndex group) const {
    plan.resident[group] = true;
    plan.resident_bytes += groups_[group].bytes;
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
  [[nodiscard]] Residency filled(Residency const& base) const {
    Residency plan = base;
    for (int round = 0; round < 8 && plan.resident_bytes + plan.ring_bytes <= budget_; ++round) {
      Bytes const reserved = plan.ring_bytes;
      fill_often_used(plan);
      fill_evenly(plan);
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

  void fill_evenly(Residency& plan) const {
    std::vector<GroupIndex> rest = streamed_in_order(plan);
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

/// Bytes to wait for in a pass, to compare plans before anything was measured. With a ring of one group where two were
/// wanted no copy hides behind computation; half as much again stands for the computation that waits.
Bytes cost(Residency const& plan, std::uint32_t wanted_depth) {
  return plan.depth < std::min<std::uint32_t>(wanted_depth, 2) ? plan.streamed_bytes + plan.streamed_bytes / 2
                                                               : plan.streamed_bytes;
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
                           std::uint32_t depth) {
  SmallestBudget const smallest = smallest_budget(groups);
  NORIA_CHECK(
      budget >= smallest.bytes, BudgetError,
      fmt::format("budget {} is below the smallest that works, {}", format_bytes(budget), format_bytes(smallest.bytes)),
      smallest.bytes);
  std::set<Bytes, std::greater<>> sizes;
  for (GroupUse const& group : groups) {
    sizes.insert(group.bytes);
  }
  Chooser chooser(groups, order, budget, std::max<std::uint32_t>(depth, 1));
  std::optional<Residency> best;
  std::size_t tried = 0;
  for (Bytes limit : sizes) {
    std::optional<Residency> plan = chooser.with_residents_above(limit);
    if (plan && (!best || cost(*plan, depth) < cost(*best, depth))) {
      best = std::move(plan);
    }
    if (++tried == 64) {
      break;
    }
  }
  if (std::optional<Residency> all = chooser.with_residents_above(0); all && all->streamed_bytes == 0) {
    best = std::move(all);
  }
  NORIA_ASSERT(best.has_value(), "the smallest budget fits with no residents");
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

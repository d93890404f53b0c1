#include "plan/residency.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <noria/error.h>

#include <numeric>

#include "support/random.h"

namespace noria::plan {
namespace {

std::vector<GroupIndex> in_turn(std::size_t count) {
  std::vector<GroupIndex> order(count);
  std::iota(order.begin(), order.end(), 0U);
  return order;
}

std::vector<GroupUse> equal(std::size_t count, Bytes bytes) {
  return std::vector<GroupUse>(count, GroupUse{.bytes = bytes});
}

TEST(Residency, EqualBlocksKeepAllButTwoSlotsForResidentsEvenlySpaced) {
  auto const groups = equal(20, 100);
  Residency const plan = choose_residents(groups, in_turn(20), 1000, 2);
  EXPECT_EQ(plan.ring_bytes, 200U);
  EXPECT_EQ(plan.resident_bytes, 800U);
  EXPECT_EQ(plan.streamed_bytes, 1200U);
  int longest = 0;
  int run = 0;
  for (bool resident : plan.resident) {
    run = resident ? 0 : run + 1;
    longest = std::max(longest, run);
  }
  EXPECT_LE(longest, 2);
}

TEST(Residency, EverythingThatFitsStaysAndNeedsNoRing) {
  Residency const plan = choose_residents(equal(5, 100), in_turn(5), 500, 2);
  EXPECT_EQ(plan.resident_bytes, 500U);
  EXPECT_EQ(plan.ring_bytes, 0U);
  EXPECT_EQ(plan.streamed_bytes, 0U);
}

TEST(Residency, TheSmallestBudgetIsTheLargestSetInUseTogether) {
  std::vector<GroupUse> groups{{.bytes = 10}, {.bytes = 100, .around = {0}}, {.bytes = 60, .around = {0}}};
  EXPECT_EQ(smallest_budget(groups).bytes, 110U);
  EXPECT_EQ(smallest_budget(groups).largest, 1U);
  Residency const plan = choose_residents(groups, std::vector<GroupIndex>{0, 1, 2}, 110, 2);
  EXPECT_LE(plan.resident_bytes + plan.ring_bytes, 110U);
  try {
    (void)choose_residents(groups, std::vector<GroupIndex>{0, 1, 2}, 109, 2);
    FAIL();
  } catch (BudgetError const& error) {
    EXPECT_EQ(error.smallest_bytes(), 110U);
  }
}

TEST(Residency, AHugeTableStaysSoThatTheRingIsSmall) {
  // A sentence encoder: the word table is 52 of 100, six layers of 8.
  std::vector<GroupUse> groups = equal(7, 8);
  groups[0].bytes = 52;
  Residency const plan = choose_residents(groups, in_turn(7), 60, 2);
  EXPECT_LE(plan.resident_bytes + plan.ring_bytes, 60U);
  EXPECT_TRUE(plan.resident[0]);
}

TEST(Residency, ModulesCalledOftenComeFirst) {
  std::vector<GroupUse> groups = equal(6, 100);
  groups[4].uses = 100;
  Residency const plan = choose_residents(groups, in_turn(6), 300, 2);
  EXPECT_TRUE(plan.resident[4]);
}

TEST(Residency, NeverAboveTheBudgetAndOffsetsDoNotOverlap) {
  test::Random random(3);
  for (int seed = 0; seed < 500; ++seed) {
    std::vector<GroupUse> groups(1 + random.below(30));
    for (std::size_t i = 0; i < groups.size(); ++i) {
      groups[i].bytes = 1 + random.below(1000);
      groups[i].uses = 1 + random.below(3);
      if (i > 0 && random.one_in(4)) {
        groups[i].around = {random.below(static_cast<std::uint32_t>(i))};
      }
    }
    Bytes const smallest = smallest_budget(groups).bytes;
    Bytes const budget = smallest + random.below(5000);
    Residency const plan = choose_residents(groups, in_turn(groups.size()), budget, 1 + random.below(3));
    EXPECT_LE(plan.resident_bytes + plan.ring_bytes, budget) << "seed " << seed;
    Bytes offset = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (plan.resident[i]) {
        EXPECT_EQ(plan.offsets[i], offset);
        offset += groups[i].bytes;
      }
    }
    EXPECT_EQ(offset, plan.resident_bytes);
  }
}

}  // namespace
}  // namespace noria::plan

#include "plan/ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "support/random.h"

namespace noria::plan {
namespace {
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Side = RangeMap::Side;

auto const kAnyGoes = [](GroupIndex) { return Tenancy{}; };
auto const kAllStay = [](GroupIndex) { return Tenancy{.stays = true, .stays_long = true}; };

TEST(RangeMap, EqualGroupsMakeARingOfSlots) {
  RangeMap map(300);
  std::vector<Bytes> begins;
  for (GroupIndex group = 0; group < 9; ++group) {
    // The previous one is in use, the one before it has just ended.
    auto const placement = map.place(group, 100, Side::kLow, [&](GroupIndex other) {
      return Tenancy{.stays = other + 2 >= group, .stays_long = other + 2 == group, .last_use = other + 1};
    });
    ASSERT_TRUE(placement);
    begins.push_back(placement->begin);
    if (group >= 3) {
      EXPECT_THAT(placement->evicted, ElementsAre(group - 3));
      EXPECT_EQ(begins[group], begins[group - 3]);
    }
  }
}

TEST(RangeMap, NeverTouchesWhatStays) {
  RangeMap map(200);
  ASSERT_TRUE(map.place(0, 100, Side::kLow, kAnyGoes));
  auto const first_stays = [](GroupIndex group) { return Tenancy{.stays = group == 0}; };
  auto const second = map.place(1, 100, Side::kLow, first_stays);
  ASSERT_TRUE(second);
  EXPECT_THAT(second->evicted, IsEmpty());
  EXPECT_FALSE(map.place(2, 101, Side::kLow, first_stays));
  EXPECT_THAT(map.groups(), ElementsAre(0, 1));
  auto const third = map.place(2, 100, Side::kLow, first_stays);
  ASSERT_TRUE(third);
  EXPECT_THAT(third->evicted, ElementsAre(1));
}

TEST(RangeMap, ContainersGoToTheHighEdge) {
  RangeMap map(300);
  EXPECT_EQ(map.place(0, 50, Side::kHigh, kAnyGoes)->begin, 250U);
  EXPECT_EQ(map.place(1, 50, Side::kLow, kAnyGoes)->begin, 0U);
}

// The promise of Note [Ranges]: a ring as large as the largest neighbours always takes the next group beside the
// current.
TEST(RangeMap, TwoNeighboursAlwaysFitInTheLargestPair) {
  test::Random random(1);
  for (int seed = 0; seed < 300; ++seed) {
    std::vector<Bytes> sizes(3 + random.below(12));
    for (Bytes& size : sizes) {
      size = 1 + random.below(100);
    }
    Bytes ring = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      ring = std::max(ring, sizes[i] + sizes[(i + 1) % sizes.size()]);
    }
    RangeMap map(ring);
    std::map<GroupIndex, std::uint64_t> last_use;
    std::optional<GroupIndex> current;
    for (std::uint64_t use = 0; use < 5 * sizes.size(); ++use) {
      auto const next = static_cast<GroupIndex>(use % sizes.size());
      for (GroupIndex held : map.groups()) {
        if (held == next) {
          map.remove(held);
        }
      }
      auto const placement = map.place(next, sizes[next], Side::kLow, [&](GroupIndex group) {
        return Tenancy{.stays = current && group == *current, .last_use = last_use[group]};
      });
      ASSERT_TRUE(placement) << "seed " << seed << " use " << use;
      last_use[next] = use + 1;
      current = next;
    }
  }
}

TEST(RangeMap, APieceIsWhatThePresentUseLeavesFree) {
  RangeMap map(150);
  ASSERT_TRUE(map.place(0, 100, Side::kLow, kAnyGoes));
  auto const first_in_use = [](GroupIndex group) { return Tenancy{.stays = group == 0}; };
  EXPECT_FALSE(map.place(1, 120, Side::kLow, first_in_use));
  auto const piece = map.place_piece(1, 120, 50, first_in_use);
  ASSERT_TRUE(piece);
  EXPECT_EQ(piece->place_begin, 30U);
  EXPECT_EQ(piece->begin, 100U);
  EXPECT_EQ(piece->end, 150U);
  EXPECT_THAT(piece->evicted, IsEmpty());
  EXPECT_EQ(map.held_bytes(), 150U);

  EXPECT_FALSE(map.extend(1, piece->place_begin, 120, 1, first_in_use)) << "the first is in use still";
  EXPECT_EQ(map.held_bytes(), 150U);
  auto const whole = map.extend(1, piece->place_begin, 120, 1, kAnyGoes);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->bytes(), 120U);
  EXPECT_THAT(whole->evicted, ElementsAre(0));
  EXPECT_THAT(map.groups(), ElementsAre(1));
  EXPECT_EQ(map.held_bytes(), 120U);
}

TEST(RangeMap, APieceGrowsAsOthersGo) {
  RangeMap map(100);
  for (GroupIndex group = 0; group < 3; ++group) {
    ASSERT_TRUE(map.place(group, 20, Side::kLow, kAllStay));
  }
  GroupIndex gone = 0;
  auto const in_turn = [&](GroupIndex group) { return Tenancy{.stays = group >= gone, .uses_left = group + 1}; };
  auto const piece = map.place_piece(9, 90, 1, in_turn);
  ASSERT_TRUE(piece);
  EXPECT_EQ(piece->bytes(), 40U) << "all that the three leave";
  gone = 1;
  EXPECT_FALSE(map.extend(9, piece->place_begin, 90, 21, in_turn)) << "no more than 20 bytes could come now";
  gone = 3;
  auto const whole = map.extend(9, piece->place_begin, 90, 21, in_turn);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->bytes(), 90U);
  EXPECT_THAT(whole->evicted, ElementsAre(0, 1, 2));
}

TEST(RangeMap, APieceIsOfThePlaceThatIsFreeFirst) {
  RangeMap map(220);
  ASSERT_TRUE(map.place(0, 100, Side::kLow, kAnyGoes));
  ASSERT_TRUE(map.place(1, 100, Side::kLow, kAllStay));
  auto const in_turn = [](GroupIndex group) { return Tenancy{.stays = true, .uses_left = group + 1}; };
  EXPECT_FALSE(map.place_piece(2, 100, 1, in_turn)) << "20 bytes beside the second, and the first goes sooner";
  auto const piece = map.place_piece(2, 110, 1, in_turn);
  EXPECT_TRUE(piece) << "only when both have gone is there room";
}

TEST(RangeMap, NoPieceBesideWhatStaysForLongNorOneTooSmallToBeWorthIt) {
  RangeMap map(150);
  ASSERT_TRUE(map.place(0, 100, Side::kLow, kAnyGoes));
  auto const for_long = [](GroupIndex) {
    return Tenancy{.stays = true, .uses_left = std::numeric_limits<std::size_t>::max()};
  };
  EXPECT_FALSE(map.place_piece(1, 120, 50, for_long));
  auto const for_now = [](GroupIndex) { return Tenancy{.stays = true}; };
  EXPECT_FALSE(map.place_piece(1, 120, 51, for_now));
  EXPECT_FALSE(map.place_piece(1, 151, 1, for_now)) << "larger than the ring";
  EXPECT_THAT(map.groups(), ElementsAre(0));
}

TEST(RangeMap, WhatIsPutSomewhereStandsThere) {
  RangeMap map(300);
  map.put(7, 100, 100);
  auto const first_stays = [](GroupIndex group) { return Tenancy{.stays = group == 7}; };
  EXPECT_FALSE(map.place(1, 150, Side::kLow, first_stays));
  auto const low = map.place(1, 100, Side::kLow, first_stays);
  ASSERT_TRUE(low);
  EXPECT_EQ(low->begin, 0U);
  auto const high = map.place(2, 100, Side::kLow, kAllStay);
  ASSERT_TRUE(high);
  EXPECT_EQ(high->begin, 200U);
  EXPECT_EQ(map.held_bytes(), 300U);
}

TEST(RangeMap, RangesStayDisjointAndInside) {
  test::Random random(2);
  RangeMap map(1000);
  for (int i = 0; i < 5000; ++i) {
    auto const group = random.below(50);
    map.remove(group);
    Bytes const bytes = 1 + random.below(300);
    auto const placement = map.place(group, bytes, random.one_in(2) ? Side::kLow : Side::kHigh, [&](GroupIndex other) {
      return Tenancy{.stays = other % 7 == 0, .stays_long = other % 14 == 0, .last_use = random.below(9)};
    });
    if (placement) {
      EXPECT_LE(placement->begin + bytes, 1000U);
    } else if (auto const piece = map.place_piece(group, bytes, 1,
                                                  [&](GroupIndex other) { return Tenancy{.stays = other % 7 == 0}; })) {
      EXPECT_LE(piece->place_begin, piece->begin);
      EXPECT_LT(piece->begin, piece->end);
      EXPECT_LE(piece->end, piece->place_begin + bytes);
      EXPECT_LE(piece->place_begin + bytes, 1000U);
      auto const some_stay = [&](GroupIndex other) { return Tenancy{.stays = other % 3 == 0}; };
      if (auto const more = map.extend(group, piece->place_begin, bytes, 1, some_stay)) {
        EXPECT_LE(more->begin, piece->begin);
        EXPECT_GE(more->end, piece->end);
        EXPECT_GT(more->bytes(), piece->bytes());
      }
    }
    EXPECT_LE(map.held_bytes(), 1000U);
  }
}

}  // namespace
}  // namespace noria::plan

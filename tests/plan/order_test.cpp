#include "plan/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/random.h"

namespace noria::plan {
namespace {
using ::testing::ElementsAre;

std::vector<GroupIndex> next(UseOrder const& order, std::size_t count) {
  std::vector<GroupIndex> out(count);
  out.resize(order.upcoming(out));
  return out;
}

void record_all(UseOrder& order, std::vector<GroupIndex> const& uses) {
  for (GroupIndex use : uses) {
    order.record(use);
  }
}

TEST(UseOrder, ExpectsNothingInTheFirstPass) {
  UseOrder order;
  record_all(order, {0, 1, 2});
  EXPECT_TRUE(next(order, 3).empty());
  EXPECT_EQ(order.surprises(), 0U);
}

TEST(UseOrder, KnowsThePassFromItsSecondFirstUseAndAcrossItsEnd) {
  UseOrder order;
  record_all(order, {0, 1, 2, 0});
  EXPECT_THAT(next(order, 5), ElementsAre(1, 2, 0, 1, 2));
  EXPECT_EQ(order.period(), 3U);
}

TEST(UseOrder, TellsARepeatedBlockFromItsLastRepeat) {
  UseOrder order;
  record_all(order, {9, 5, 5, 5, 5, 1, 9, 5, 5, 5, 5, 1, 9, 5, 5, 5});
  EXPECT_THAT(next(order, 3), ElementsAre(5, 1, 9));
  order.record(5);
  EXPECT_THAT(next(order, 2), ElementsAre(1, 9));
}

TEST(UseOrder, ASkippedBlockIsOneSurpriseAndTheRestIsExpectedAgain) {
  UseOrder order;
  record_all(order, {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
  EXPECT_EQ(order.surprises(), 0U);
  record_all(order, {0, 1, 4});
  EXPECT_EQ(order.surprises(), 1U);
  EXPECT_THAT(next(order, 2), ElementsAre(5, 0));
}

TEST(UseOrder, FollowsAnAlternationOfBranches) {
  UseOrder order;
  for (int i = 0; i < 6; ++i) {
    record_all(order, {0, i % 2 == 0 ? 1U : 2U, 3});
  }
  record_all(order, {0});
  EXPECT_THAT(next(order, 5), ElementsAre(1, 3, 0, 2, 3));
}

TEST(UseOrder, ReversalIsLearnedAfterOnePass) {
  UseOrder order;
  record_all(order, {0, 1, 2, 3, 0, 1, 2, 3});
  record_all(order, {3, 2, 1, 0, 3});
  EXPECT_THAT(next(order, 4), ElementsAre(2, 1, 0, 3));
}

TEST(UseOrder, ForgetsTheOldestAndStaysBounded) {
  UseOrder order(16);
  for (GroupIndex i = 0; i < 10000; ++i) {
    order.record(i);  // never repeats
    EXPECT_TRUE(next(order, 4).empty());
  }
  record_all(order, {1, 2, 3, 1, 2, 3});
  EXPECT_THAT(next(order, 3), ElementsAre(1, 2, 3));
}

TEST(UseOrder, APassLongerThanTheMemoryExpectsNothingRatherThanNonsense) {
  UseOrder order(8);
  for (int pass = 0; pass < 3; ++pass) {
    for (GroupIndex i = 0; i < 20; ++i) {
      order.record(i);
      for (GroupIndex expected : next(order, 4)) {
        EXPECT_LT(expected, 20U);
      }
    }
  }
}

TEST(UseOrder, AnyPeriodicProgramIsExpectedExactlyAfterTwoPassesOnceContextsAreUnique) {
  test::Random random(7);
  for (int seed = 0; seed < 200; ++seed) {
    std::vector<GroupIndex> pass(5 + random.below(40));
    for (auto& use : pass) {
      use = random.below(6);  // many repeats
    }
    UseOrder order;
    for (int i = 0; i < 4; ++i) {
      record_all(order, pass);
    }
    std::uint64_t const before = order.surprises();
    for (int i = 0; i < 3; ++i) {
      record_all(order, pass);
    }
    EXPECT_EQ(order.surprises(), before) << "seed " << seed;
  }
}

}  // namespace
}  // namespace noria::plan

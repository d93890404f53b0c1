#include "plan/steady_pass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "support/random.h"

namespace noria::plan {
namespace {

using ::testing::DoubleNear;

struct Chain {
  std::vector<GroupUse> groups;
  std::vector<GroupIndex> order;
  Speeds speeds;

  explicit Chain(std::vector<Bytes> const& bytes, double use_seconds) {
    for (Bytes size : bytes) {
      groups.push_back({.bytes = size});
    }
    order.resize(bytes.size());
    std::iota(order.begin(), order.end(), 0U);
    speeds.use_seconds.assign(bytes.size(), use_seconds);
    speeds.bytes_per_second = 1.0;
  }

  [[nodiscard]] double seconds(Residency const& plan) const { return steady_seconds(groups, order, plan, speeds); }
  [[nodiscard]] double streamed_through(Bytes ring) const { return seconds(no_residents(groups, ring)); }
};

TEST(SteadyPass, EqualBlocksThroughTwoSlotsTakeTheLongerOfCopyingAndComputing) {
  EXPECT_THAT(Chain(std::vector<Bytes>(10, 100), 400).streamed_through(200), DoubleNear(4000, 1e-6));
  EXPECT_THAT(Chain(std::vector<Bytes>(10, 100), 25).streamed_through(300), DoubleNear(1000, 1e-6));
}

TEST(SteadyPass, OneSlotHidesNothing) {
  EXPECT_THAT(Chain(std::vector<Bytes>(10, 100), 50).streamed_through(100), DoubleNear(10 * 150, 1e-6));
}

TEST(SteadyPass, ResidentsCostNoCopies) {
  Chain const chain(std::vector<Bytes>(10, 100), 10);
  Residency plan = no_residents(chain.groups, 200);
  EXPECT_THAT(chain.seconds(plan), DoubleNear(1000, 1e-6));
  plan.resident[0] = plan.resident[3] = plan.resident[7] = true;
  EXPECT_THAT(chain.seconds(plan), DoubleNear(700, 1e-6));
  plan.resident.assign(10, true);
  EXPECT_THAT(chain.seconds(plan), DoubleNear(100, 1e-6));
}

TEST(SteadyPass, TwoLargeNeighboursWaitForEachOtherInASmallRing) {
  Chain const chain({100, 100, 10, 10}, 50);
  EXPECT_THAT(chain.streamed_through(220), DoubleNear(200, 1e-6)) << "the ring holds everything";
  // 20 bytes of each come beside the computation with the other.
  EXPECT_THAT(Chain({100, 100}, 50).streamed_through(120), DoubleNear(2 * (50 + 80), 1e-6));
  EXPECT_THAT(Chain({100, 100}, 50).streamed_through(100), DoubleNear(2 * (50 + 100), 1e-6)) << "no part is free";
}

TEST(SteadyPass, LatencyCountsOncePerCopy) {
  Chain chain(std::vector<Bytes>(4, 100), 1);
  chain.speeds.latency_seconds = 5;
  EXPECT_THAT(chain.streamed_through(300), DoubleNear(4 * 105, 1e-6));
}

/// Seconds of the best of all sets of residents.
double best_of_all(Chain const& chain, Bytes budget) {
  double best = std::numeric_limits<double>::infinity();
  std::size_t const count = chain.groups.size();
  for (std::uint32_t set = 0; set < (1U << count); ++set) {
    Residency plan = no_residents(chain.groups, 0);
    Bytes largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if ((set >> i & 1U) != 0) {
        plan.resident[i] = true;
        plan.resident_bytes += chain.groups[i].bytes;
      } else {
        largest = std::max(largest, chain.groups[i].bytes);
      }
    }
    if (plan.resident_bytes + largest <= budget) {
      plan.ring_bytes = budget - plan.resident_bytes;
      best = std::min(best, chain.seconds(plan));
    }
  }
  return best;
}

TEST(Residency, ThePlanOfASmallModelIsNearlyTheBestOfAll) {
  test::Random random(23);
  int best_found = 0;
  constexpr int kSeeds = 60;
  for (int seed = 0; seed < kSeeds; ++seed) {
    std::vector<Bytes> bytes(3 + random.below(6));
    for (Bytes& size : bytes) {
      size = Bytes{1} << random.below(6);
    }
    Chain const chain(bytes, 1 + random.below(30));
    Bytes const total = std::accumulate(bytes.begin(), bytes.end(), Bytes{0});
    Bytes const budget = smallest_budget(chain.groups).bytes + random.below(static_cast<std::uint32_t>(total));
    Residency plan = choose_residents(chain.groups, chain.order, budget, 2, &chain.speeds);
    plan.ring_bytes = budget - plan.resident_bytes;
    double const best = best_of_all(chain, budget);
    EXPECT_LE(chain.seconds(plan), 1.2 * best) << "seed " << seed;
    best_found += chain.seconds(plan) <= 1.01 * best ? 1 : 0;
  }
  EXPECT_GE(best_found, kSeeds * 8 / 10);
}

TEST(Residency, APlanBySpeedsIsNeverSlowerThanOneByBytes) {
  test::Random random(11);
  for (int seed = 0; seed < 100; ++seed) {
    std::vector<Bytes> bytes(2 + random.below(14));
    for (Bytes& size : bytes) {
      size = Bytes{1} << random.below(7);
    }
    Chain chain(bytes, 1 + random.below(60));
    Bytes const total = std::accumulate(bytes.begin(), bytes.end(), Bytes{0});
    Bytes const budget = smallest_budget(chain.groups).bytes + random.below(static_cast<std::uint32_t>(total));
    auto const with_all_room = [&](Residency plan) {
      plan.ring_bytes = budget - plan.resident_bytes;
      return chain.seconds(plan);
    };
    Residency const by_bytes = choose_residents(chain.groups, chain.order, budget, 2);
    Residency const by_speeds = choose_residents(chain.groups, chain.order, budget, 2, &chain.speeds);
    EXPECT_LE(by_speeds.resident_bytes + by_speeds.ring_bytes, budget) << "seed " << seed;
    EXPECT_LE(with_all_room(by_speeds), with_all_room(by_bytes) * 1.0001) << "seed " << seed;
  }
}

}  // namespace
}  // namespace noria::plan

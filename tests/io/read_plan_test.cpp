#include "io/read_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>

#include "support/scale.h"

namespace noria {
namespace {

constexpr Bytes kKiB = 1024;
constexpr Bytes kMiB = 1024 * kKiB;

TEST(ReadPlan, OneSmallPieceIsOneExtent) {
  std::vector<ReadPiece> const pieces{{.file = 0, .offset = 100, .length = 50, .destination = 64}};
  ReadPlan const plan = ReadPlan::make(pieces);
  ASSERT_EQ(plan.extents().size(), 1U);
  EXPECT_EQ(plan.extents()[0].begin, 100U);
  EXPECT_EQ(plan.extents()[0].end, 150U);
  ASSERT_EQ(plan.copies(plan.extents()[0]).size(), 1U);
  EXPECT_EQ(plan.copies(plan.extents()[0])[0], (ReadCopy{.source = 0, .destination = 64, .length = 50}));
  EXPECT_EQ(plan.destination_bytes(), 114U);
}

TEST(ReadPlan, CutsOnTheGridOfTheFile) {
  std::vector<ReadPiece> const pieces{{.file = 0, .offset = 3 * kMiB, .length = 6 * kMiB, .destination = 0}};
  ReadPlan const plan = ReadPlan::make(pieces);
  ASSERT_EQ(plan.extents().size(), 3U);
  EXPECT_EQ(plan.extents()[0].end, 4 * kMiB);
  EXPECT_EQ(plan.extents()[1].end, 8 * kMiB);
  EXPECT_EQ(plan.extents()[2].end, 9 * kMiB);
  EXPECT_EQ(plan.copies(plan.extents()[2])[0].destination, 5 * kMiB);
}

TEST(ReadPlan, MergesAcrossASmallGapAndNotAcrossAWastefulOne) {
  auto const extents = [](Bytes gap) {
    std::vector<ReadPiece> const pieces{{.offset = 0, .length = kMiB, .destination = 0},
                                        {.offset = kMiB + gap, .length = kMiB, .destination = kMiB}};
    return ReadPlan::make(pieces).extents().size();
  };
  EXPECT_EQ(extents(0), 1U);
  EXPECT_EQ(extents(100 * kKiB), 1U);
  EXPECT_EQ(extents(110 * kKiB), 2U) << "more than 5 % would be thrown away";
}

TEST(ReadPlan, NeverMergesAcrossAGapOf256KiB) {
  auto const wasted = [](Bytes gap) {
    // The gap lies inside a chunk, and is far less than 5 % of the whole.
    std::vector<ReadPiece> const pieces{{.offset = kMiB, .length = 100 * kMiB, .destination = 0},
                                        {.offset = 101 * kMiB + gap, .length = kMiB, .destination = 100 * kMiB}};
    ReadPlan const plan = ReadPlan::make(pieces);
    return plan.read_bytes() - plan.wanted_bytes();
  };
  EXPECT_EQ(wasted(256 * kKiB), 0U);
  EXPECT_EQ(wasted(256 * kKiB - 1), 256 * kKiB - 1);
}

TEST(ReadPlan, FilesAreReadInOrderAndNeverMixed) {
  std::vector<ReadPiece> const pieces{{.file = 1, .offset = 0, .length = 10, .destination = 0},
                                      {.file = 0, .offset = 10, .length = 10, .destination = 10}};
  ReadPlan const plan = ReadPlan::make(pieces);
  ASSERT_EQ(plan.extents().size(), 2U);
  EXPECT_EQ(plan.extents()[0].file, 0U);
  EXPECT_EQ(plan.extents()[1].file, 1U);
}

TEST(ReadPlan, BytesWantedTwiceAreReadOnce) {
  std::vector<ReadPiece> const pieces{{.offset = 0, .length = 100, .destination = 0},
                                      {.offset = 50, .length = 100, .destination = 100}};
  ReadPlan const plan = ReadPlan::make(pieces);
  EXPECT_EQ(plan.read_bytes(), 150U);
  EXPECT_EQ(plan.wanted_bytes(), 200U);
}

TEST(ReadPlan, NeighboursInFileAndMemoryAreOneCopy) {
  std::vector<ReadPiece> const pieces{{.offset = 0, .length = 100, .destination = 512},
                                      {.offset = 100, .length = 100, .destination = 612}};
  ReadPlan const plan = ReadPlan::make(pieces);
  ASSERT_EQ(plan.extents().size(), 1U);
  EXPECT_EQ(plan.extents()[0].copy_count, 1U);
}

TEST(ReadPlan, EmptyPiecesNeedNothing) {
  std::vector<ReadPiece> const pieces{{.offset = 7, .length = 0, .destination = 0}};
  EXPECT_TRUE(ReadPlan::make(pieces).extents().empty());
  EXPECT_TRUE(ReadPlan::make({}).extents().empty());
}

TEST(ReadPlan, RefusesOverflowAndSharedDestinations) {
  constexpr Bytes kMost = std::numeric_limits<Bytes>::max();
  std::vector<ReadPiece> const wraps{{.offset = kMost, .length = 2, .destination = 0}};
  EXPECT_THROW((void)ReadPlan::make(wraps), std::invalid_argument);
  std::vector<ReadPiece> const far{{.offset = 0, .length = 2, .destination = kMost}};
  EXPECT_THROW((void)ReadPlan::make(far), std::invalid_argument);
  std::vector<ReadPiece> const shared{{.offset = 0, .length = 10, .destination = 0},
                                      {.offset = 20, .length = 10, .destination = 9}};
  EXPECT_THROW((void)ReadPlan::make(shared), std::invalid_argument);
  EXPECT_THROW((void)ReadPlan::make({}, {.chunk_bytes = 3}), std::invalid_argument);
}

TEST(ReadPlan, TheLastBytesOfTheAddressSpaceArePlanned) {
  constexpr Bytes kMost = std::numeric_limits<Bytes>::max();
  std::vector<ReadPiece> const pieces{{.offset = kMost - 10, .length = 10, .destination = 0}};
  ReadPlan const plan = ReadPlan::make(pieces);
  ASSERT_EQ(plan.extents().size(), 1U);
  EXPECT_EQ(plan.extents()[0].end, kMost);
}

// Random layouts: every wanted byte is copied exactly once, from the right place, by an extent that obeys the rules.
TEST(ReadPlan, PropertiesHoldForRandomLayouts) {
  for (int seed = 0; seed < testing::scaled(500); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    auto const below = [&](Bytes limit) { return random() % limit; };
    ReadPlanOptions const options{.chunk_bytes = Bytes{1} << (6 + below(8)),
                                  .merge_gap_bytes = below(600),
                                  .waste = static_cast<double>(below(20)) / 100.0};
    std::vector<ReadPiece> pieces;
    Bytes at = below(1000);
    Bytes destination = 0;
    for (Bytes count = below(40); count > 0; --count) {
      Bytes const length = below(3) == 0 ? below(5000) : below(300);
      destination += below(64);
      pieces.push_back(
          {.file = static_cast<std::uint32_t>(below(3)), .offset = at, .length = length, .destination = destination});
      destination += length;
      at = below(4) == 0 ? below(20'000) : at + length + below(400);
    }
    std::ranges::shuffle(pieces, random);
    ReadPlan const plan = ReadPlan::make(pieces, options);

    std::map<Bytes, std::pair<std::uint32_t, Bytes>> wanted;  // destination byte -> file byte
    for (ReadPiece const& piece : pieces) {
      for (Bytes i = 0; i < piece.length; ++i) {
        wanted[piece.destination + i] = {piece.file, piece.offset + i};
      }
    }
    Bytes read = 0;
    Bytes needed = 0;
    ReadExtent const* previous = nullptr;
    for (ReadExtent const& extent : plan.extents()) {
      ASSERT_LT(extent.begin, extent.end);
      ASSERT_EQ(extent.begin / options.chunk_bytes, (extent.end - 1) / options.chunk_bytes) << "crosses the grid";
      if (previous != nullptr && previous->file == extent.file) {
        ASSERT_LE(previous->end, extent.begin) << "unsorted or overlapping";
      }
      previous = &extent;
      read += extent.bytes();
      std::vector<bool> used(extent.bytes());
      for (ReadCopy const& copy : plan.copies(extent)) {
        ASSERT_LE(copy.source + copy.length, extent.bytes());
        for (Bytes i = 0; i < copy.length; ++i) {
          auto const found = wanted.find(copy.destination + i);
          ASSERT_NE(found, wanted.end()) << "a byte nobody wants, or twice";
          ASSERT_EQ(found->second, std::pair(extent.file, extent.begin + copy.source + i));
          wanted.erase(found);
          used[copy.source + i] = true;
        }
      }
      ASSERT_TRUE(used.front() && used.back()) << "reads at an edge what no copy uses";
      needed += static_cast<Bytes>(std::ranges::count(used, true));
    }
    ASSERT_TRUE(wanted.empty());
    ASSERT_EQ(plan.read_bytes(), read);
    ASSERT_LE(static_cast<double>(read - needed),
              options.waste * static_cast<double>(read) + 1e-9 * static_cast<double>(read));
  }
}

}  // namespace
}  // namespace noria

/// What every read engine promises, over {uring, threads, faulty} x {direct, buffered} x {disk, tmpfs}.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "io/aligned_buffer.h"
#include "io/source_file.h"
#include "support/read_cases.h"
#include "support/temp_dir.h"

namespace noria {
namespace {

using testing::ReadCase;

constexpr std::size_t kDepth = 4;
constexpr Bytes kBlock = Bytes{64} * 1024;
constexpr std::size_t kBlocks = 24;
constexpr Bytes kTail = 4096;  // a file that does not end on a block of the test

class EngineContract : public ::testing::TestWithParam<ReadCase> {
 protected:
  void SetUp() override {
    if (std::string const reason = testing::skip_reason(GetParam()); !reason.empty()) {
      GTEST_SKIP() << GetParam().name() << ": " << reason;
    }
    folder_ = std::make_unique<testing::TempDir>(*testing::place_of(GetParam()));
    content_ = testing::pattern(kBlock * kBlocks + kTail);
    testing::write_file(*folder_ / "weights", content_);
    source_ = SourceFile::open(*folder_ / "weights");
    memory_ = AlignedBuffer(kBlock * (kBlocks + 1));
  }

  std::unique_ptr<ReadEngine> engine(std::size_t depth = kDepth) { return testing::make_engine(GetParam(), depth); }

  ReadOp block(std::size_t i) const {
    return {.descriptor = GetParam().direct ? source_->direct_descriptor() : source_->file().descriptor(),
            .offset = i * kBlock,
            .destination = memory_.bytes().subspan(i * kBlock, kBlock),
            .tag = 1000 + i,
            .direct = GetParam().direct};
  }

  void expect_block(std::size_t i, std::size_t bytes) const {
    EXPECT_EQ(std::memcmp(memory_.data() + i * kBlock, content_.data() + i * kBlock, bytes), 0) << "block " << i;
  }

  // A result that an engine may give for a read of `wanted` bytes that are there: for an honest engine, all of them.
  bool acceptable(std::int64_t result, Bytes wanted) const {
    if (!GetParam().faulty) {
      return result == static_cast<std::int64_t>(wanted);
    }
    return result == -EINTR || result == -EAGAIN || (result > 0 && result <= static_cast<std::int64_t>(wanted));
  }

  std::unique_ptr<testing::TempDir> folder_;
  std::string content_;
  std::shared_ptr<SourceFile const> source_;
  AlignedBuffer memory_;
};

TEST_P(EngineContract, CompletesEachOperationOnceWithItsBytes) {
  auto const reads = engine();
  std::map<std::uint64_t, std::int64_t> results;
  std::vector<ReadCompletion> completions;
  std::size_t next = 0;
  while (results.size() < kBlocks) {
    while (next < kBlocks) {
      ReadOp const operation = block(next);
      if (reads->submit({&operation, 1}) == 0) {
        break;
      }
      ++next;
    }
    completions.clear();
    reads->wait(1, completions);
    for (ReadCompletion const& completion : completions) {
      ASSERT_TRUE(results.emplace(completion.tag, completion.result).second) << completion.tag << " completed twice";
    }
  }
  EXPECT_EQ(reads->in_flight(), 0U);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    ASSERT_TRUE(results.contains(1000 + i));
    EXPECT_TRUE(acceptable(results[1000 + i], kBlock)) << results[1000 + i];
    if (results[1000 + i] > 0) {
      expect_block(i, static_cast<std::size_t>(results[1000 + i]));
    }
  }
}

TEST_P(EngineContract, TakesNoMoreThanItsDepth) {
  auto const reads = engine();
  std::vector<ReadOp> operations;
  operations.reserve(kBlocks);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    operations.push_back(block(i));
  }
  EXPECT_EQ(reads->submit(operations), kDepth);
  EXPECT_EQ(reads->in_flight(), kDepth);
  EXPECT_EQ(reads->submit(operations), 0U);
  std::vector<ReadCompletion> completions;
  reads->wait(kDepth + 5, completions);
  EXPECT_EQ(completions.size(), kDepth) << "waiting for more than there is must end";
  EXPECT_EQ(reads->in_flight(), 0U);
  reads->wait(1, completions);
  EXPECT_EQ(completions.size(), kDepth) << "waiting with nothing in flight must end";
}

TEST_P(EngineContract, TheEndOfTheFileIsAShortCountAndThenZero) {
  auto const reads = engine();
  ReadOp const at_end = block(kBlocks);
  ReadOp beyond = at_end;
  beyond.offset += kBlock;
  beyond.tag = 7;
  for (auto const& [operation, wanted] : {std::pair(at_end, kTail), std::pair(beyond, Bytes{0})}) {
    std::int64_t result = -EINTR;
    while (result == -EINTR || result == -EAGAIN) {
      std::vector<ReadCompletion> completions;
      ASSERT_EQ(reads->submit({&operation, 1}), 1U);
      reads->wait(1, completions);
      ASSERT_EQ(completions.size(), 1U);
      result = completions[0].result;
    }
    EXPECT_TRUE(wanted == 0 ? result == 0 : acceptable(result, wanted)) << result;
  }
}

TEST_P(EngineContract, AFailedOperationHidesNoOther) {
  auto const reads = engine();
  std::vector<ReadOp> operations{block(0), block(1), block(2), block(3)};
  operations[1].descriptor = 1'000'000;
  ASSERT_EQ(reads->submit(operations), 4U);
  std::vector<ReadCompletion> completions;
  reads->drain(completions);
  ASSERT_EQ(completions.size(), 4U);
  std::map<std::uint64_t, std::int64_t> results;
  for (ReadCompletion const& completion : completions) {
    results[completion.tag] = completion.result;
  }
  EXPECT_TRUE(results[1001] == -EBADF || (GetParam().faulty && results[1001] == -EINTR)) << results[1001];
  for (std::uint64_t const tag : {1000U, 1002U, 1003U}) {
    EXPECT_TRUE(acceptable(results[tag], kBlock)) << tag << ": " << results[tag];
  }
}

TEST_P(EngineContract, CancelledOperationsStillComplete) {
  auto const reads = engine();
  std::vector<ReadOp> const operations{block(0), block(1), block(2), block(3)};
  ASSERT_EQ(reads->submit(operations), 4U);
  reads->cancel();
  std::vector<ReadCompletion> completions;
  reads->drain(completions);
  ASSERT_EQ(completions.size(), 4U);
  EXPECT_EQ(reads->in_flight(), 0U);
  for (ReadCompletion const& completion : completions) {
    EXPECT_TRUE(completion.result == -ECANCELED || completion.result == -EINTR || acceptable(completion.result, kBlock))
        << completion.result;
  }
}

TEST_P(EngineContract, WorksAgainAfterACancellation) {
  auto const reads = engine();
  std::vector<ReadCompletion> completions;
  for (int round = 0; round < 5; ++round) {
    ReadOp const operation = block(static_cast<std::size_t>(round));
    ASSERT_EQ(reads->submit({&operation, 1}), 1U);
    reads->cancel();
    reads->drain(completions);
    ASSERT_EQ(reads->submit({&operation, 1}), 1U);
    completions.clear();
    reads->drain(completions);
    ASSERT_EQ(completions.size(), 1U);
    EXPECT_TRUE(acceptable(completions[0].result, kBlock)) << completions[0].result;
  }
}

TEST_P(EngineContract, AWakeLosesNothing) {
  auto const reads = engine();
  reads->wake();
  reads->wake();
  ReadOp const operation = block(5);
  ASSERT_EQ(reads->submit({&operation, 1}), 1U);
  std::vector<ReadCompletion> completions;
  while (completions.empty()) {
    reads->wait(1, completions);
  }
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].tag, 1005U);
}

// The address sanitizer sees a read that lands later.
TEST_P(EngineContract, NothingTouchesMemoryAfterTheEngine) {
  for (std::size_t round = 0; round < 8; ++round) {
    auto reads = engine();
    AlignedBuffer own(kDepth * kBlock);
    std::vector<ReadOp> operations;
    for (std::size_t i = 0; i < kDepth; ++i) {
      operations.push_back(block(i));
      operations.back().destination = own.bytes().subspan(i * kBlock, kBlock);
    }
    reads->submit(operations);
    reads.reset();
  }
}

TEST_P(EngineContract, AnnouncedMemoryReadsTheSame) {
  auto const reads = engine();
  reads->announce_buffer(memory_.bytes());
  std::vector<ReadOp> const operations{block(0), block(1)};
  ASSERT_EQ(reads->submit(operations), 2U);
  std::vector<ReadCompletion> completions;
  reads->drain(completions);
  for (ReadCompletion const& completion : completions) {
    if (completion.result > 0) {
      expect_block(completion.tag - 1000, static_cast<std::size_t>(completion.result));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EngineContract, ::testing::ValuesIn(testing::all_read_cases()),
                         [](auto const& info) { return info.param.name(); });

TEST(Engines, ThereAreBetweenFourAndSixteenThreads) {
  EXPECT_GE(default_reader_threads(), 4U);
  EXPECT_LE(default_reader_threads(), 16U);
}

TEST(Engines, AutoTakesUringWhereItWorks) {
  auto const chosen = make_read_engine({});
  EXPECT_EQ(chosen->name(), uring_unusable_reason().empty() ? "uring" : "threads");
  EXPECT_EQ(chosen->depth(), 16U);
}

TEST(Engines, DepthIsLimited) {
  EXPECT_THROW((void)make_read_engine({.depth = 0}), std::invalid_argument);
  EXPECT_THROW((void)make_read_engine({.depth = 129}), std::invalid_argument);
}

}  // namespace
}  // namespace noria

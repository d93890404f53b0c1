/// What a Reader promises, over {uring, threads, faulty} x {direct, buffered} x {disk, tmpfs}.
#include "io/reader.h"

#include <gtest/gtest.h>
#include <noria/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "io/aligned_buffer.h"
#include "support/hooked_engine.h"
#include "support/read_cases.h"
#include "support/scale.h"
#include "support/temp_dir.h"

namespace noria {
namespace {

using testing::ReadCase;

constexpr Bytes kMiB = Bytes{1} << 20U;
constexpr char kUntouched = '\x5a';

class ReaderContract : public ::testing::TestWithParam<ReadCase> {
 protected:
  void SetUp() override {
    if (std::string const reason = testing::skip_reason(GetParam()); !reason.empty()) {
      GTEST_SKIP() << GetParam().name() << ": " << reason;
    }
    folder_ = std::make_unique<testing::TempDir>(*testing::place_of(GetParam()));
  }

  std::shared_ptr<SourceFile const> source(std::string const& name, std::string_view content) const {
    testing::write_file(*folder_ / name, content);
    return SourceFile::open(*folder_ / name);
  }

  ReaderOptions options(std::optional<FaultScript> script = {}) const {
    return testing::reader_options(GetParam(), std::move(script));
  }

  // A request for the whole of one file, to `memory`.
  static ReadRequest whole(std::shared_ptr<SourceFile const> const& file, std::span<std::byte> memory) {
    std::vector<ReadPiece> const pieces{{.offset = 0, .length = file->file().size(), .destination = 0}};
    return {.files = {file},
            .plan = std::make_shared<ReadPlan const>(ReadPlan::make(pieces, {.chunk_bytes = kMiB})),
            .destination = memory};
  }

  std::unique_ptr<testing::TempDir> folder_;
};

std::string_view text(std::span<std::byte const> bytes) {
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

TEST_P(ReaderContract, ReadsRandomLayoutsToTheirPlacesAndNothingElse) {
  std::vector<std::string> contents{testing::pattern(5 * kMiB + 333, 1), testing::pattern(3 * kMiB + 7, 2),
                                    testing::pattern(100, 3)};
  std::vector<std::shared_ptr<SourceFile const>> files;
  files.reserve(contents.size());
  for (std::size_t i = 0; i < contents.size(); ++i) {
    files.push_back(source("shard" + std::to_string(i), contents[i]));
  }
  Reader reader(options());
  for (int seed = 0; seed < testing::scaled(100); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    std::vector<ReadPiece> pieces;
    Bytes destination = 0;
    for (int i = 0; i < 12; ++i) {
      auto const file = static_cast<std::uint32_t>(random() % files.size());
      Bytes const size = contents[file].size();
      Bytes const offset = random() % size;
      Bytes const length = random() % 3 == 0 ? size - offset : std::min<Bytes>(size - offset, random() % 70'000);
      destination = align_up(destination + random() % 2, 64);
      pieces.push_back({.file = file, .offset = offset, .length = length, .destination = destination});
      destination += length;
    }
    AlignedBuffer const memory(destination + 64);
    std::memset(memory.data(), kUntouched, memory.size());
    std::string expected(memory.size(), kUntouched);
    for (ReadPiece const& piece : pieces) {
      expected.replace(piece.destination, piece.length, contents[piece.file], piece.offset, piece.length);
    }
    ReadTicket const ticket =
        reader.start({.files = files,
                      .plan = std::make_shared<ReadPlan const>(ReadPlan::make(pieces, {.chunk_bytes = kMiB})),
                      .destination = memory.bytes()});
    ticket.wait();
    ASSERT_TRUE(ticket.done());
    ASSERT_TRUE(text(memory.bytes()) == expected);
  }
  EXPECT_LE(reader.stats().most_in_flight, 4U);
  EXPECT_EQ(reader.stats().failed_requests, 0U);
  EXPECT_EQ(reader.stats().direct_bytes != 0, GetParam().direct);
}

TEST_P(ReaderContract, DeliversEveryByteOnceCutAtTheGridOnly) {
  std::string const content = testing::pattern(5 * kMiB + 333);
  auto const file = source("weights", content);
  Reader reader(options());
  constexpr Bytes kElement = 8;
  std::vector<ReadPiece> const pieces{{.offset = 64, .length = 3 * kMiB, .destination = 0},
                                      {.offset = 4 * kMiB + 8, .length = 2'000 * kElement, .destination = 3 * kMiB}};
  std::string delivered(3 * kMiB + 2'000 * kElement, kUntouched);
  std::size_t count = 0;
  Bytes total = 0;
  auto const deliver = [&](Bytes place, std::span<std::byte const> bytes) {
    ++count;
    EXPECT_EQ(place % kElement, 0U);
    EXPECT_EQ(bytes.size() % kElement, 0U) << "an element stands across two deliveries";
    ASSERT_LE(place + bytes.size(), delivered.size());
    total += bytes.size();
    std::memcpy(delivered.data() + place, bytes.data(), bytes.size());
  };
  reader
      .start({.files = {file},
              .plan = std::make_shared<ReadPlan const>(ReadPlan::make(pieces, {.chunk_bytes = kMiB})),
              .deliver = deliver})
      .wait();
  EXPECT_TRUE(delivered == content.substr(64, 3 * kMiB) + content.substr(4 * kMiB + 8, 2'000 * kElement));
  EXPECT_EQ(total, delivered.size()) << "a byte came twice";
  EXPECT_GE(count, 5U) << "one for each chunk at least";
}

TEST_P(ReaderContract, WhatADeliveryThrowsFailsTheRequestAndNoOther) {
  std::string const content = testing::pattern(2 * kMiB);
  auto const file = source("weights", content);
  Reader reader(options());
  ReadRequest request = whole(file, {});
  request.deliver = [](Bytes, std::span<std::byte const>) { throw IntegrityError("these are no numbers"); };
  ReadTicket const failing = reader.start(std::move(request));
  EXPECT_THROW(failing.wait(), Error);
  AlignedBuffer const memory(content.size());
  reader.start(whole(file, memory.bytes())).wait();
  EXPECT_TRUE(text(memory.bytes()).substr(0, content.size()) == content);
}

TEST_P(ReaderContract, ManyRequestsAreServedAtOnceFromManyThreads) {
  std::string const content = testing::pattern(2 * kMiB + 5);
  auto const file = source("weights", content);
  Reader reader(options());
  std::vector<std::thread> users;
  users.reserve(4);
  for (int user = 0; user < 4; ++user) {
    users.emplace_back([&] {
      for (int round = 0; round < 4; ++round) {
        AlignedBuffer const memory(content.size());
        ReadTicket const ticket = reader.start(whole(file, memory.bytes()));
        ticket.wait();
        EXPECT_TRUE(text(memory.bytes().first(content.size())) == content);
      }
    });
  }
  for (std::thread& user : users) {
    user.join();
  }
  EXPECT_EQ(reader.stats().requests, 16U);
}

TEST_P(ReaderContract, ATruncatedFileNeverBecomesWeights) {
  auto const file = source("weights", testing::pattern(3 * kMiB));
  Reader reader(options());
  std::filesystem::resize_file(*folder_ / "weights", 2 * kMiB + 100);
  AlignedBuffer const memory(3 * kMiB);
  try {
    reader.start(whole(file, memory.bytes())).wait();
    FAIL() << "read a truncated file";
  } catch (IntegrityError const& error) {
    EXPECT_EQ(error.code(), IntegrityCode::kFileTruncated) << error.what();
    EXPECT_EQ(error.path(), (*folder_ / "weights").string());
  }
}

TEST_P(ReaderContract, ARewrittenOrReplacedFileIsNoticed) {
  std::string const content = testing::pattern(kMiB);
  Reader reader(options());
  AlignedBuffer const memory(kMiB);
  auto const rewritten = source("rewritten", content);
  testing::write_file(*folder_ / "rewritten", testing::pattern(kMiB, 9));
  auto const replaced = source("replaced", content);
  testing::write_file(*folder_ / "new", testing::pattern(kMiB, 9));
  std::filesystem::rename(*folder_ / "new", *folder_ / "replaced");
  for (auto const& file : {rewritten, replaced}) {
    try {
      reader.start(whole(file, memory.bytes())).wait();
      FAIL() << file->file().path() << " was read";
    } catch (IntegrityError const& error) {
      EXPECT_EQ(error.code(), IntegrityCode::kFileChanged) << error.what();
    }
  }
}

TEST_P(ReaderContract, AFailingDiskIsAStorageErrorAndTheNextAttemptWorks) {
  std::string const content = testing::pattern(3 * kMiB);
  auto const file = source("weights", content);
  Reader reader(options(FaultScript{.faults = {{.kind = Fault::Kind::kError, .value = EIO, .first = 2}}}));
  AlignedBuffer const memory(content.size());
  try {
    reader.start(whole(file, memory.bytes())).wait();
    FAIL() << "the error was lost";
  } catch (StorageError const& error) {
    EXPECT_EQ(error.error_number(), EIO);
    EXPECT_EQ(error.path(), file->file().path());
    EXPECT_EQ(error.offset(), kMiB);
  }
  ReadTicket const again = reader.start(whole(file, memory.bytes()));
  again.wait();
  EXPECT_TRUE(text(memory.bytes().first(content.size())) == content);
}

TEST_P(ReaderContract, EveryFaultThatIsNoErrorIsCarriedOnFrom) {
  using enum Fault::Kind;
  std::vector<FaultScript> const scripts{
      {.faults = {{.kind = kShort, .value = -1, .first = 1, .every = 2}}},
      {.faults = {{.kind = kShort, .value = 512, .first = 1, .every = 3}}},
      {.faults = {{.kind = kShort, .value = 4096, .first = 1, .every = 1}}},
      {.faults = {{.kind = kError, .value = EINTR, .first = 1, .every = 2}}},
      {.faults = {{.kind = kError, .value = EAGAIN, .first = 1, .every = 2}}},
      {.faults = {{.kind = kDelay, .value = 1000, .first = 2}}},
      {.faults = {{.kind = kDelay, .value = 2, .first = 1, .every = 2}}, .reorder_seed = 7},
  };
  std::string const content = testing::pattern(2 * kMiB + 999);
  auto const file = source("weights", content);
  for (std::size_t i = 0; i < scripts.size(); ++i) {
    SCOPED_TRACE(i);
    Reader reader(options(scripts[i]));
    AlignedBuffer const memory(content.size());
    ReadTicket const ticket = reader.start(whole(file, memory.bytes()));
    ticket.wait();
    EXPECT_TRUE(text(memory.bytes().first(content.size())) == content);
  }
}

TEST_P(ReaderContract, InterruptionsWithoutEndAreAnError) {
  auto const file = source("weights", testing::pattern(1000));
  Reader reader(
      options(FaultScript{.faults = {{.kind = Fault::Kind::kError, .value = EAGAIN, .first = 1, .every = 1}}}));
  AlignedBuffer const memory(1000);
  EXPECT_THROW(reader.start(whole(file, memory.bytes())).wait(), StorageError);
}

TEST_P(ReaderContract, AnEarlyEndOfTheFileIsTruncation) {
  auto const file = source("weights", testing::pattern(3 * kMiB));
  Reader reader(options(FaultScript{.faults = {{.kind = Fault::Kind::kEndOfFile, .first = 3}}}));
  AlignedBuffer const memory(3 * kMiB);
  try {
    reader.start(whole(file, memory.bytes())).wait();
    FAIL() << "the early end was lost";
  } catch (IntegrityError const& error) {
    EXPECT_EQ(error.code(), IntegrityCode::kFileTruncated);
  }
}

TEST_P(ReaderContract, CancellingAtEveryStepEndsTheRequestAndOnlyThat) {
  std::string const content = testing::pattern(6 * kMiB);
  auto const file = source("weights", content);
  for (std::size_t step = 0; step < 8; ++step) {
    SCOPED_TRACE(step);
    std::mutex mutex;
    std::condition_variable started;
    ReadTicket const* victim = nullptr;
    ReaderOptions cancelling = options();
    cancelling.wrap = [&, inner = cancelling.wrap](std::unique_ptr<ReadEngine> engine) -> std::unique_ptr<ReadEngine> {
      if (inner) {
        engine = inner(std::move(engine));
      }
      return std::make_unique<testing::HookedEngine>(std::move(engine), [&](std::size_t wait) {
        if (wait == step) {
          std::unique_lock lock(mutex);
          started.wait(lock, [&] { return victim != nullptr; });
          victim->cancel();
        }
      });
    };
    AlignedBuffer const memory(content.size());
    AlignedBuffer const other_memory(content.size());
    Reader reader(cancelling);
    ReadTicket const ticket = reader.start(whole(file, memory.bytes()));
    ReadTicket const other = reader.start(whole(file, other_memory.bytes()));
    {
      std::lock_guard const lock(mutex);
      victim = &ticket;
    }
    started.notify_all();
    try {
      ticket.wait();
      EXPECT_TRUE(text(memory.bytes().first(content.size())) == content) << "finished, so it must be whole";
    } catch (StorageError const& error) {
      FAIL() << error.what();
    } catch (Error const& error) {
      EXPECT_NE(std::string_view(error.what()).find("cancelled"), std::string_view::npos) << error.what();
    }
    other.wait();
    EXPECT_TRUE(text(other_memory.bytes().first(content.size())) == content);
  }
}

TEST_P(ReaderContract, DroppedTicketsLeaveMemoryAlone) {
  auto const file = source("weights", testing::pattern(4 * kMiB));
  Reader reader(options());
  for (int round = 0; round < 10; ++round) {
    auto const memory = std::make_unique<AlignedBuffer>(4 * kMiB);
    ReadTicket const dropped = reader.start(whole(file, memory->bytes()));
  }
}

TEST_P(ReaderContract, ClosingTheReaderFailsWhatIsUnderWay) {
  auto const file = source("weights", testing::pattern(4 * kMiB));
  AlignedBuffer const memory(4 * kMiB);
  std::vector<ReadTicket> tickets;
  {
    Reader reader(options());
    for (int i = 0; i < 3; ++i) {
      tickets.push_back(reader.start(whole(file, memory.bytes())));
    }
  }
  for (ReadTicket const& ticket : tickets) {
    EXPECT_TRUE(ticket.done());
    try {
      ticket.wait();
    } catch (Error const& error) {
      EXPECT_NE(std::string_view(error.what()).find("closed"), std::string_view::npos) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReaderContract, ::testing::ValuesIn(testing::all_read_cases()),
                         [](auto const& info) { return info.param.name(); });

}  // namespace
}  // namespace noria

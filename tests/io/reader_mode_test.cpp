/// How a Reader chooses between disk and page cache, what it counts, and what it refuses.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <noria/error.h>

#include <stdexcept>

#include "core/log.h"
#include "io/aligned_buffer.h"
#include "io/page_cache.h"
#include "io/reader.h"
#include "support/read_cases.h"
#include "support/temp_dir.h"

namespace noria {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20U;
constexpr Bytes kChunk = 4 * kMiB;

std::shared_ptr<ReadPlan const> plan_of(std::vector<ReadPiece> const& pieces) {
  return std::make_shared<ReadPlan const>(ReadPlan::make(pieces));
}

class ReaderModes : public ::testing::Test {
 protected:
  // A file of three chunks where direct reads work; skips the test elsewhere.
  void SetUp() override {
    if (std::string const reason = testing::skip_reason({.direct = true}); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    folder_ = std::make_unique<testing::TempDir>(*testing::place_of({}));
    content_ = testing::pattern(3 * kChunk);
    testing::write_file(*folder_ / "weights", content_);
    source_ = SourceFile::open(*folder_ / "weights");
    memory_ = AlignedBuffer(3 * kChunk + 4096);
  }

  ReaderStats read(ReadMode mode, std::vector<ReadPiece> const& pieces, std::span<std::byte> memory) {
    Reader reader({.mode = mode});
    reader.start({.files = {source_}, .plan = plan_of(pieces), .destination = memory}).wait();
    for (ReadPiece const& piece : pieces) {
      std::string_view const arrived(reinterpret_cast<char const*>(memory.data() + piece.destination), piece.length);
      EXPECT_TRUE(arrived == content_.substr(piece.offset, piece.length));
    }
    return reader.stats();
  }

  std::vector<ReadPiece> const whole_{{.offset = 0, .length = 3 * kChunk, .destination = 0}};
  std::unique_ptr<testing::TempDir> folder_;
  std::string content_;
  std::shared_ptr<SourceFile const> source_;
  AlignedBuffer memory_;
};

TEST_F(ReaderModes, AutoReadsColdExtentsFromTheDiskAndWarmOnesFromTheCache) {
  ASSERT_EQ(drop_from_page_cache(source_->file()), 0U);
  EXPECT_EQ(read(ReadMode::kAuto, whole_, memory_.bytes()).direct_bytes, 3 * kChunk);
  EXPECT_EQ(cached_bytes(source_->file(), 0, 3 * kChunk), 0U) << "direct reads went through the cache";
  (void)read(ReadMode::kBuffered, whole_, memory_.bytes());
  EXPECT_EQ(read(ReadMode::kAuto, whole_, memory_.bytes()).direct_bytes, 0U);
  ::posix_fadvise(source_->file().descriptor(), static_cast<off_t>(kChunk), static_cast<off_t>(kChunk),
                  POSIX_FADV_DONTNEED);
  ReaderStats const mixed = read(ReadMode::kAuto, whole_, memory_.bytes());
  EXPECT_EQ(mixed.direct_bytes, kChunk) << "the middle extent alone is cold";
  EXPECT_EQ(mixed.read_bytes, 3 * kChunk);
}

TEST_F(ReaderModes, AlignedDirectReadsGoStraightToTheirPlace) {
  ReaderStats const stats = read(ReadMode::kDirect, whole_, memory_.bytes());
  EXPECT_EQ(stats.bounced_bytes, 0U);
  EXPECT_EQ(stats.reads, 3U);
  EXPECT_EQ(stats.read_bytes, stats.wanted_bytes);
}

TEST_F(ReaderModes, UnalignedDirectReadsBounce) {
  ReaderStats const stats = read(ReadMode::kDirect, whole_, memory_.bytes().subspan(1));
  EXPECT_EQ(stats.bounced_bytes, 3 * kChunk);
  EXPECT_EQ(stats.reads, 3U);
}

TEST_F(ReaderModes, OnlyTheEdgesOfALongUnalignedRangeBounce) {
  Bytes const block = source_->caps().offset_alignment;
  // File and memory agree modulo the block, and both ends lie inside one.
  std::vector<ReadPiece> const pieces{{.offset = 8, .length = 2 * kChunk, .destination = 8}};
  ReaderStats const stats = read(ReadMode::kDirect, pieces, memory_.bytes());
  EXPECT_EQ(stats.bounced_bytes, block - 8 + 8);
  EXPECT_EQ(stats.read_bytes, 2 * kChunk + block);
}

TEST_F(ReaderModes, BufferedReadsNeverBounceAndReadNoMoreThanWanted) {
  std::vector<ReadPiece> const pieces{{.offset = 3, .length = 100'001, .destination = 1},
                                      {.offset = 100'010, .length = 77, .destination = 300'000}};
  ReaderStats const stats = read(ReadMode::kBuffered, pieces, memory_.bytes());
  EXPECT_EQ(stats.bounced_bytes, 0U);
  EXPECT_EQ(stats.read_bytes, stats.wanted_bytes);
}

TEST_F(ReaderModes, ARefusedDirectReadFallsBackOnceAndSaysSo) {
  std::vector<std::string> said;
  set_log_sink([&](LogLevel /*level*/, std::string_view text) { said.emplace_back(text); });
  ASSERT_EQ(drop_from_page_cache(source_->file()), 0U);
  ReaderOptions const options{.wrap = [](std::unique_ptr<ReadEngine> engine) -> std::unique_ptr<ReadEngine> {
    return std::make_unique<FaultyEngine>(
        std::move(engine), FaultScript{.faults = {{.kind = Fault::Kind::kError, .value = EINVAL, .first = 1}}});
  }};
  Reader reader(options);
  ReadRequest const request{.files = {source_}, .plan = plan_of(whole_), .destination = memory_.bytes()};
  reader.start(request).wait();
  set_log_sink({});
  EXPECT_FALSE(source_->direct_usable());
  EXPECT_EQ(std::string_view(reinterpret_cast<char const*>(memory_.data()), content_.size()), content_);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_NE(said[0].find("refused"), std::string::npos);
  Reader forced({.mode = ReadMode::kDirect});
  EXPECT_THROW((void)forced.start(request), UnsupportedOperation);
}

TEST_F(ReaderModes, MemoryThatCannotBePinnedIsFilledThroughABounceBuffer) {
  ReaderOptions const options{
      .mode = ReadMode::kDirect, .wrap = [](std::unique_ptr<ReadEngine> engine) -> std::unique_ptr<ReadEngine> {
        return std::make_unique<FaultyEngine>(
            std::move(engine), FaultScript{.faults = {{.kind = Fault::Kind::kError, .value = EFAULT, .first = 2}}});
      }};
  Reader reader(options);
  reader.start({.files = {source_}, .plan = plan_of(whole_), .destination = memory_.bytes()}).wait();
  EXPECT_EQ(std::string_view(reinterpret_cast<char const*>(memory_.data()), content_.size()), content_);
  EXPECT_EQ(reader.stats().bounced_bytes, kChunk);
}

TEST_F(ReaderModes, SixteenReadsAreInFlightByDefaultAndNoMore) {
  std::vector<ReadPiece> pieces;
  pieces.reserve(40);
  for (Bytes i = 0; i < 40; ++i) {
    pieces.push_back({.offset = i * 300'000, .length = 1000, .destination = i * 1000});
  }
  Reader reader({.mode = ReadMode::kDirect});
  reader.start({.files = {source_}, .plan = plan_of(pieces), .destination = memory_.bytes()}).wait();
  EXPECT_EQ(reader.stats().most_in_flight, 16U);
}

TEST_F(ReaderModes, ARequestThatDoesNotFitItsPlanIsAWrongArgument) {
  Reader reader;
  auto const plan = plan_of(whole_);
  EXPECT_THROW((void)reader.start({.files = {source_}, .plan = plan, .destination = memory_.bytes().first(100)}),
               std::invalid_argument);
  EXPECT_THROW((void)reader.start({.files = {}, .plan = plan, .destination = memory_.bytes()}), std::invalid_argument);
  std::vector<ReadPiece> const beyond{{.offset = 3 * kChunk, .length = 1, .destination = 0}};
  EXPECT_THROW((void)reader.start({.files = {source_}, .plan = plan_of(beyond), .destination = memory_.bytes()}),
               std::invalid_argument);
  auto const large = std::make_shared<ReadPlan const>(ReadPlan::make(whole_, {.chunk_bytes = 8 * kMiB}));
  EXPECT_THROW((void)reader.start({.files = {source_}, .plan = large, .destination = memory_.bytes()}),
               std::invalid_argument);
}

TEST_F(ReaderModes, AnEmptyRequestIsDone) {
  Reader reader;
  ReadTicket const ticket = reader.start({.plan = std::make_shared<ReadPlan const>()});
  ticket.wait();
  EXPECT_TRUE(ticket.done());
  EXPECT_TRUE(ReadTicket().done());
}

TEST(ReaderOnMemory, AutoReadsThroughTheCacheAndForcedDirectFails) {
  auto const place = testing::place_of({.memory = true});
  if (!place) {
    GTEST_SKIP() << "no tmpfs here";
  }
  testing::TempDir const folder(*place);
  std::string const content = testing::pattern(100'000);
  testing::write_file(folder / "weights", content);
  auto const source = SourceFile::open(folder / "weights");
  EXPECT_FALSE(source->direct_usable());
  std::string bytes(content.size(), '\0');
  ReadRequest const request{.files = {source},
                            .plan = plan_of({{.offset = 0, .length = content.size(), .destination = 0}}),
                            .destination = std::as_writable_bytes(std::span(bytes))};
  Reader reader;
  reader.start(request).wait();
  EXPECT_EQ(bytes, content);
  EXPECT_EQ(reader.stats().direct_bytes, 0U);
  Reader forced({.mode = ReadMode::kDirect});
  EXPECT_THROW((void)forced.start(request), UnsupportedOperation);
}

}  // namespace
}  // namespace noria

#include "io/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <noria/error.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

#include "io/dio_caps.h"
#include "io/page_cache.h"
#include "io/source_file.h"
#include "support/read_cases.h"
#include "support/temp_dir.h"

namespace noria {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20U;

// Runs `body` in a child process and answers its exit status.
int in_child(std::function<int()> const& body) {
  pid_t const child = ::fork();
  if (child == 0) {
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class OnDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    auto const place = testing::place_of({.memory = false});
    if (!place) {
      GTEST_SKIP() << "no folder on a disk here";
    }
    folder_ = std::make_unique<testing::TempDir>(*place);
    testing::write_file(*folder_ / "file", testing::pattern(8 * kMiB + 100));
    file_ = File::open(*folder_ / "file");
  }
  std::unique_ptr<testing::TempDir> folder_;
  File file_;
};

TEST_F(OnDisk, ReadsExactlyOrSaysWhereItEnded) {
  std::string bytes(100, '\0');
  file_.read_exact(8 * kMiB, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(bytes, testing::pattern(8 * kMiB + 100).substr(8 * kMiB));
  try {
    file_.read_exact(8 * kMiB + 1, std::as_writable_bytes(std::span(bytes)));
    FAIL() << "read beyond the end";
  } catch (IntegrityError const& error) {
    EXPECT_EQ(error.code(), IntegrityCode::kFileTruncated);
  }
}

TEST_F(OnDisk, EveryWayToChangeAFileIsNoticed) {
  std::filesystem::path const path = *folder_ / "changing";
  auto const changed_by = [&](std::function<void()> const& change) {
    testing::write_file(path, "original");
    File const file = File::open(path);
    file.check_unchanged();
    change();
    try {
      file.check_unchanged();
      return std::string("nothing");
    } catch (IntegrityError const& error) {
      return std::string(integrity_code_name(error.code()));
    }
  };
  EXPECT_EQ(changed_by([&] { testing::write_file(path, "modified"); }), "FileChanged");
  EXPECT_EQ(changed_by([&] { testing::write_file(path, "longer than before"); }), "FileChanged");
  EXPECT_EQ(changed_by([&] { testing::write_file(path, "short"); }), "FileTruncated");
  EXPECT_EQ(changed_by([&] { std::filesystem::remove(path); }), "FileChanged");
  EXPECT_EQ(changed_by([&] {
              testing::write_file(*folder_ / "other", "original");
              std::filesystem::rename(*folder_ / "other", path);
            }),
            "FileChanged");
  EXPECT_EQ(changed_by([&] {
              // The modification time is put back; the change time cannot be.
              auto const time = std::filesystem::last_write_time(path);
              testing::write_file(path, "modified");
              std::filesystem::last_write_time(path, time);
            }),
            "FileChanged");
}

TEST_F(OnDisk, TheCacheIsMeasuredAndDropped) {
  EXPECT_EQ(cached_bytes(file_, 0, file_.size()), file_.size());
  EXPECT_EQ(drop_from_page_cache(file_), 0U);
  EXPECT_EQ(cached_bytes(file_, 0, file_.size()), 0U);
  ::posix_fadvise(file_.descriptor(), 0, 0, POSIX_FADV_RANDOM);
  std::string page(4096, '\0');
  file_.read_exact(4 * kMiB, std::as_writable_bytes(std::span(page)));
  EXPECT_EQ(cached_bytes(file_, 4 * kMiB, 4096), 4096U);
  EXPECT_EQ(cached_bytes(file_, 4 * kMiB + 100, 50), 50U);
  EXPECT_EQ(cached_bytes(file_, 0, kMiB), 0U);
  EXPECT_EQ(cached_bytes(file_, 100 * kMiB, 5), 0U);
}

TEST_F(OnDisk, AMappedFileIsNotDroppedAndThatIsSaid) {
  void* const map = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED | MAP_POPULATE, file_.descriptor(), 0);
  ASSERT_NE(map, MAP_FAILED);
  EXPECT_GT(drop_from_page_cache(file_), 0U);
  ::munmap(map, 4096);
  EXPECT_EQ(drop_from_page_cache(file_), 0U);
}

TEST_F(OnDisk, DirectReadsAreProvenOrExplained) {
  SourceFile const source(File::open(*folder_ / "file"));
  EXPECT_FALSE(source.caps().how.empty());
  if (source.direct_usable()) {
    EXPECT_NE(source.caps().offset_alignment, 0U);
    EXPECT_EQ(::fcntl(source.direct_descriptor(), F_GETFL) & O_DIRECT, O_DIRECT);
  }
  source.refuse_direct("a test");
  EXPECT_FALSE(source.direct_usable());
}

TEST_F(OnDisk, AnEmptyFileIsASource) {
  testing::write_file(*folder_ / "empty", std::string_view());
  EXPECT_EQ(SourceFile::open(*folder_ / "empty")->file().size(), 0U);
}

TEST_F(OnDisk, NoDescriptorsLeftIsAStorageError) {
  // The undefined-behaviour sanitizer opens a pipe when it first meets a type of the code that writes the message.
  EXPECT_THROW((void)File::open(*folder_ / "not there"), StorageError);
  EXPECT_EQ(in_child([&] {
              rlimit const limit{.rlim_cur = 3, .rlim_max = 3};
              ::setrlimit(RLIMIT_NOFILE, &limit);
              try {
                (void)File::open(*folder_ / "file");
                return 1;
              } catch (StorageError const& error) {
                return error.error_number() == EMFILE ? 0 : 2;
              }
            }),
            0);
}

TEST_F(OnDisk, AReaderInAForkedChildRefusesAndLetsGo) {
  auto reader = std::make_unique<Reader>();
  ReadTicket ticket = reader->start({.plan = std::make_shared<ReadPlan const>()});
  ticket.wait();
  EXPECT_EQ(in_child([&] {
              try {
                (void)reader->start({.plan = std::make_shared<ReadPlan const>()});
                return 1;
              } catch (Error const& error) {
                if (std::string_view(error.what()).find("fork") == std::string_view::npos) {
                  return 2;
                }
              }
              ticket = {};
              reader.reset();
              return 0;
            }),
            0);
}

TEST_F(OnDisk, NoLockedMemoryIsNoReasonToFail) {
  EXPECT_EQ(in_child([&] {
              rlimit const limit{.rlim_cur = 0, .rlim_max = 0};
              ::setrlimit(RLIMIT_MEMLOCK, &limit);
              auto const source = SourceFile::open(*folder_ / "file");
              std::vector<ReadPiece> const pieces{{.offset = 3, .length = 1000, .destination = 0}};
              std::string bytes(1000, '\0');
              Reader reader({.mode = source->direct_usable() ? ReadMode::kDirect : ReadMode::kAuto});
              reader
                  .start({.files = {source},
                          .plan = std::make_shared<ReadPlan const>(ReadPlan::make(pieces)),
                          .destination = std::as_writable_bytes(std::span(bytes))})
                  .wait();
              return bytes == testing::pattern(8 * kMiB + 100).substr(3, 1000) ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace noria

#include "core/host_memory.h"

#include <gtest/gtest.h>
#include <noria/error.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>

namespace noria {
namespace {

namespace fs = std::filesystem;
using namespace noria::literals;

// A machine's /proc and /sys made of plain files.
class HostMemoryFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("noria_host_memory_" + std::to_string(getpid()) + "_" +
                                         ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(fs::path const& name, std::string const& text) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  void mount_v2(std::string const& group, std::string const& mounted_root = "/") {
    write("proc/self/cgroup", "0::" + group + "\n");
    write("proc/self/mountinfo", "41 31 0:38 " + mounted_root + " /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n");
  }
  void group_v2(fs::path const& group, std::string const& max, Bytes current, std::string const& stat = "") {
    write("sys/fs/cgroup" / group / "memory.max", max + "\n");
    write("sys/fs/cgroup" / group / "memory.current", std::to_string(current) + "\n");
    write("sys/fs/cgroup" / group / "memory.stat", stat);
  }

  fs::path root_;
};

TEST_F(HostMemoryFiles, WithoutGroupsIsWhatTheKernelSays) {
  auto const memory = host_memory(root_);
  EXPECT_EQ(memory.available, 8_GiB);
  EXPECT_EQ(memory.total, 16_GiB);
  EXPECT_EQ(memory.limited_by, (root_ / "proc/meminfo").string());
}

TEST_F(HostMemoryFiles, TheTightestAncestorCounts) {
  mount_v2("/a/b/c");
  group_v2("a/b/c", "max", 1_GiB);
  group_v2("a/b", "6442450944", 1_GiB);
  group_v2("a", "4294967296", 3_GiB);
  auto const memory = host_memory(root_);
  EXPECT_EQ(memory.available, 1_GiB);
  EXPECT_EQ(memory.total, 4_GiB);
  EXPECT_EQ(memory.limited_by, (root_ / "sys/fs/cgroup/a/memory.max").string());
}

TEST_F(HostMemoryFiles, PageCacheIsNotUse) {
  mount_v2("/a");
  group_v2("a", "4294967296", 4_GiB, "anon 1\nactive_file 1073741824\ninactive_file 1073741824\n");
  EXPECT_EQ(host_memory(root_).available, 2_GiB);
}

TEST_F(HostMemoryFiles, UseAboveTheLimitLeavesNothing) {
  mount_v2("/a");
  group_v2("a", "1073741824", 2_GiB);
  EXPECT_EQ(host_memory(root_).available, 0U);
}

TEST_F(HostMemoryFiles, AContainerSeesItsGroupAsTheRootOfTheMount) {
  mount_v2("/docker/abc", "/docker/abc");
  group_v2("", "2147483648", 1_GiB);
  EXPECT_EQ(host_memory(root_).available, 1_GiB);
}

TEST_F(HostMemoryFiles, AGroupOutsideTheMountFallsBackToTheMountItself) {
  mount_v2("/elsewhere", "/docker/abc");
  group_v2("", "2147483648", 1_GiB);
  EXPECT_EQ(host_memory(root_).available, 1_GiB);
}

TEST_F(HostMemoryFiles, VersionOneCountsChildrenCacheAndAncestors) {
  write("proc/self/cgroup", "5:cpu:/x\n4:hugetlb,memory:/outer/in:ner\n0::/\n");
  write("proc/self/mountinfo",
        "30 31 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,hugetlb,memory\n");
  auto const group = [this](fs::path const& name, Bytes limit, Bytes use, std::string const& stat) {
    write("sys/fs/cgroup/memory" / name / "memory.limit_in_bytes", std::to_string(limit));
    write("sys/fs/cgroup/memory" / name / "memory.usage_in_bytes", std::to_string(use));
    write("sys/fs/cgroup/memory" / name / "memory.stat", stat);
  };
  group("outer/in:ner", 9223372036854771712U, 1_GiB, "");
  group("outer", 3_GiB, 2_GiB, "inactive_file 1\ntotal_inactive_file 536870912\ntotal_active_file 536870912\n");
  auto const memory = host_memory(root_);
  EXPECT_EQ(memory.available, 2_GiB);
  EXPECT_EQ(memory.total, 3_GiB);
}

TEST_F(HostMemoryFiles, AMissingMeminfoIsNamed) {
  fs::remove(root_ / "proc/meminfo");
  try {
    host_memory(root_);
    FAIL() << "no error";
  } catch (StorageError const& error) {
    EXPECT_EQ(error.path(), (root_ / "proc/meminfo").string());
  }
}

TEST(HostMemory, OfThisMachineIsWithinItsTotal) {
  auto const memory = host_memory();
  EXPECT_GT(memory.available, 0U);
  EXPECT_LE(memory.available, memory.total);
}

TEST(HostMemory, PeakFollowsABlockThatCameAndWentAndForgetsItAtReset) {
  constexpr Bytes kBlock = 64_MiB;
  auto const before = resident_bytes();
  // Mapped, not allocated: the address sanitizer keeps what is freed.
  void* const block = ::mmap(nullptr, kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kBlock);
  EXPECT_GE(resident_bytes(), before + kBlock / 2);
  ASSERT_EQ(::munmap(block, kBlock), 0);
  EXPECT_GE(peak_resident_bytes(), before + kBlock / 2);
  reset_peak_resident_bytes();
  EXPECT_LT(peak_resident_bytes(), before + kBlock / 2);
}

}  // namespace
}  // namespace noria

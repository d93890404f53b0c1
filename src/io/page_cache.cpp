#include "io/page_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <noria/error.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

namespace noria {
namespace {

// The call is younger than the headers of the oldest system we build on. Number and layout:
// linux/include/uapi/asm-generic/unistd.h and linux/include/uapi/linux/mman.h.
#ifdef SYS_cachestat
constexpr long kCachestat = SYS_cachestat;
#else
constexpr long kCachestat = 451;
#endif
struct CachestatRange {
  std::uint64_t offset;
  std::uint64_t length;
};
struct Cachestat {
  std::uint64_t cached_pages;
  std::uint64_t dirty_pages;
  std::uint64_t writeback_pages;
  std::uint64_t evicted_pages;
  std::uint64_t recently_evicted_pages;
};

std::optional<Bytes> by_cachestat(int fd, Bytes begin, Bytes end, Bytes page) {
  static std::atomic<bool> missing = false;
  if (missing) {
    return std::nullopt;
  }
  CachestatRange range{.offset = begin, .length = end - begin};
  Cachestat answer{};
  if (::syscall(kCachestat, fd, &range, &answer, 0) != 0) {
    missing = errno == ENOSYS;
    return std::nullopt;
  }
  return answer.cached_pages * page;
}

std::optional<Bytes> by_mincore(int fd, Bytes begin, Bytes end, Bytes page) {
  void* const map = ::mmap(nullptr, end - begin, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(begin));
  if (map == MAP_FAILED) {
    return std::nullopt;
  }
  std::vector<unsigned char> pages((end - begin + page - 1) / page);
  bool const told = ::mincore(map, end - begin, pages.data()) == 0;
  ::munmap(map, end - begin);
  if (!told) {
    return std::nullopt;
  }
  auto const resident = std::ranges::count_if(pages, [](unsigned char bits) { return (bits & 1U) != 0; });
  return static_cast<Bytes>(resident) * page;
}

}  // namespace

std::optional<Bytes> cached_bytes(File const& file, Bytes offset, Bytes length) {
  Bytes const end = std::min(file.size(), offset + length);
  if (length == 0 || offset >= end) {
    return 0;
  }
  static auto const page = static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
  Bytes const begin = offset / page * page;
  std::optional<Bytes> cached = by_cachestat(file.descriptor(), begin, end, page);
  if (!cached) {
    cached = by_mincore(file.descriptor(), begin, end, page);
  }
  if (!cached) {
    return std::nullopt;
  }
  return std::min(*cached, end - offset);
}

Bytes drop_from_page_cache(File const& file) {
  if (::fdatasync(file.descriptor()) != 0) {
    int const error = errno;
    throw StorageError(fmt::format("cannot flush '{}': {}", file.path(), std::strerror(error)), file.path(), error);
  }
  ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  return cached_bytes(file, 0, file.size()).value_or(file.size());
}

}  // namespace noria

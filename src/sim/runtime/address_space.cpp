#include "sim/runtime/address_space.h"

#include <fmt/format.h>
#include <noria/error.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "sim/runtime/runtime.h"

namespace noria::sim {
namespace {

using namespace noria::literals;

constexpr Bytes kPage = 4_KiB;

// Under the thread sanitizer the application has a small part of the address space.
#if defined(__SANITIZE_THREAD__)
constexpr Bytes kLargestReservation = 64_GiB;
#else
constexpr Bytes kLargestReservation = 16_GiB << 10U;
#endif

// Remapping a large range is cheaper than writing it, and it does not take memory for bytes nobody reads.
constexpr Bytes kRemapAbove = 64_MiB;

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

/// A file of poison, mapped privately over and over: reading it costs its own size once, however large the range.
/// Lives as long as the process, since mappings do.
struct PoisonFile {
  static constexpr Bytes kBytes = 32_MiB;
  int descriptor = -1;

  PoisonFile() {
    int const file = memfd_create("noria-poison", MFD_CLOEXEC);
    if (file < 0) {
      return;
    }
    std::vector<unsigned char> const chunk(1_MiB, kPoisonByte);
    for (Bytes done = 0; done < kBytes; done += chunk.size()) {
      if (write(file, chunk.data(), chunk.size()) != static_cast<ssize_t>(chunk.size())) {
        close(file);
        return;
      }
    }
    descriptor = file;
  }
};

PoisonFile const& poison_file() {
  static PoisonFile const kFile;
  return kFile;
}

void map_fixed(std::uintptr_t begin, Bytes bytes, int protection, int flags, int descriptor) {
  void* const got =
      mmap(pointer(begin), bytes, protection, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | flags, descriptor, 0);
  if (got == MAP_FAILED) {
    int const error = errno;
    throw Error(
        fmt::format("the simulated device could not map {}: {} (the system's limit on mappings, "
                    "vm.max_map_count, or on memory may be reached)",
                    format_bytes(bytes), std::strerror(error)));
  }
}

}  // namespace

AddressSpace::AddressSpace(Bytes bytes) : bytes_(std::min(align_up(bytes, kGranule), kLargestReservation)) {
  void* base = MAP_FAILED;
  for (; bytes_ >= kGranule; bytes_ = align_up(bytes_ / 2, kGranule)) {
    base = mmap(nullptr, bytes_ + kGranule, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base != MAP_FAILED || bytes_ == kGranule) {
      break;
    }
  }
  if (base == MAP_FAILED) {
    throw Error(fmt::format("the simulated device could not reserve {} of addresses: {}", format_bytes(bytes),
                            std::strerror(errno)));
  }
  auto const raw = reinterpret_cast<std::uintptr_t>(base);
  begin_ = align_up(raw, kGranule);
  if (begin_ != raw) {
    munmap(base, begin_ - raw);
  }
  if (Bytes const tail = raw + kGranule - begin_; tail != 0) {
    munmap(pointer(begin_ + bytes_), tail);
  }
  free_.emplace(begin_, bytes_);
  owners_.reset(static_cast<Segment**>(std::calloc(bytes_ / kGranule, sizeof(Segment*))));
  if (!owners_) {
    munmap(pointer(begin_), bytes_);
    throw std::bad_alloc();
  }
}

AddressSpace::~AddressSpace() { munmap(pointer(begin_), bytes_); }

void AddressSpace::FreeArray::operator()(Segment** array) const { std::free(static_cast<void*>(array)); }

std::uintptr_t AddressSpace::take(Bytes bytes, Segment* segment) {
  auto const found = std::ranges::find_if(free_, [bytes](auto const& stretch) { return stretch.second >= bytes; });
  if (found == free_.end()) {
    throw Error(fmt::format("the simulated memory has no {} of addresses in one piece left", format_bytes(bytes)));
  }
  auto const [begin, length] = *found;
  free_.erase(found);
  if (length > bytes) {
    free_.emplace(begin + bytes, length - bytes);
  }
  Segment** const first = owners_.get() + (begin - begin_) / kGranule;
  std::fill(first, first + bytes / kGranule, segment);
  highest_ = std::max(highest_, begin + bytes);
  return begin;
}

void AddressSpace::give(std::uintptr_t begin, Bytes bytes) {
  Segment** const first = owners_.get() + (begin - begin_) / kGranule;
  std::fill(first, first + bytes / kGranule, nullptr);
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && begin + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto const previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      previous->second += bytes;
      return;
    }
  }
  free_.emplace(begin, bytes);
}

void back_range(std::uintptr_t begin, Bytes bytes, Backing backing) {
  switch (backing) {
    case Backing::kNothing:
      map_fixed(begin, bytes, PROT_NONE, MAP_ANONYMOUS, -1);
      return;
    case Backing::kZeroes:
      map_fixed(begin, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1);
      return;
    case Backing::kPoison:
      break;
  }
  PoisonFile const& file = poison_file();
  if (file.descriptor < 0) {
    map_fixed(begin, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1);
    std::memset(pointer(begin), kPoisonByte, bytes);
    return;
  }
  for (Bytes done = 0; done < bytes; done += PoisonFile::kBytes) {
    map_fixed(begin + done, std::min(PoisonFile::kBytes, bytes - done), PROT_READ | PROT_WRITE, 0, file.descriptor);
  }
}

void poison_range(std::uintptr_t begin, Bytes bytes) {
  if (bytes < kRemapAbove) {
    std::memset(pointer(begin), kPoisonByte, bytes);
    return;
  }
  std::uintptr_t const first = align_up(begin, kPage);
  std::uintptr_t const last = (begin + bytes) & ~(kPage - 1);
  try {
    back_range(first, last - first, Backing::kPoison);
  } catch (Error const&) {
    // Out of mappings: some of the range may have been replaced already, so write all of it.
    std::memset(pointer(begin), kPoisonByte, bytes);
    return;
  }
  std::memset(pointer(begin), kPoisonByte, first - begin);
  std::memset(pointer(last), kPoisonByte, begin + bytes - last);
}

}  // namespace noria::sim

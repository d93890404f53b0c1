#include "io/dio_caps.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "io/aligned_buffer.h"

namespace noria {
namespace {

constexpr Bytes kSafeAlignment = 4096;

struct Alignment {
  Bytes memory = kSafeAlignment;
  Bytes offset = kSafeAlignment;
  char const* how = "assumed";
  bool refused = false;  // the file system says that this file has no direct I/O
  bool told = false;     // by statx
};

Bytes logical_block_size(std::uint64_t device) {
  std::string const folder = fmt::format("/sys/dev/block/{}:{}", major(device), minor(device));
  for (char const* const queue : {"/queue", "/../queue"}) {  // a partition's queue is its disk's
    std::ifstream in(folder + queue + "/logical_block_size");
    Bytes bytes = 0;
    if (in >> bytes && std::has_single_bit(bytes) && bytes <= kSafeAlignment) {
      return bytes;
    }
  }
  return 0;
}

Alignment alignment_of(File const& file) {
  Alignment alignment;
#ifdef STATX_DIOALIGN
  struct statx status{};
  if (::statx(file.descriptor(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    alignment.told = true;
    alignment.refused = status.stx_dio_offset_align == 0;
    alignment.memory = std::max<Bytes>(status.stx_dio_mem_align, 1);
    alignment.offset = std::max<Bytes>(status.stx_dio_offset_align, 1);
    alignment.how = "told by the file system";
    return alignment;
  }
#endif
  if (Bytes const block = logical_block_size(file.identity().device); block != 0) {
    alignment.memory = alignment.offset = block;
    alignment.how = "the block size of the device";
  }
  return alignment;
}

// One read at the start of the file; 0 or errno. A file shorter than the read ends early, which is a success.
int try_read(int fd, std::byte* memory, Bytes length, Bytes offset) {
  ssize_t got = 0;
  do {
    got = ::pread(fd, memory, length, static_cast<off_t>(offset));
  } while (got < 0 && errno == EINTR);
  return got < 0 ? errno : 0;
}

DioCaps unusable(std::string why) { return {.how = std::move(why)}; }

}  // namespace

DioCaps probe_direct_io(File const& file, Descriptor* descriptor) {
  descriptor->reset();
  int error = 0;
  Descriptor direct = file.reopen(O_DIRECT, &error);
  if (!direct) {
    return unusable(fmt::format("opening for direct I/O failed: {}", std::strerror(error)));
  }
  Alignment alignment = alignment_of(file);
  if (alignment.refused) {
    return unusable("the file system says that it has no direct I/O for this file");
  }
  AlignedBuffer const probe(2 * kSafeAlignment);
  if (!alignment.told && try_read(direct.get(), probe.data() + 1, 1, 1) == 0) {
    return unusable("the file system takes unaligned direct reads, so they are not direct");
  }
  error = try_read(direct.get(), probe.data() + alignment.memory % kSafeAlignment, alignment.offset, 0);
  if (error == EINVAL && std::max(alignment.memory, alignment.offset) < kSafeAlignment) {
    alignment = {.how = "raised after a refused read"};
    error = try_read(direct.get(), probe.data(), alignment.offset, 0);
  }
  if (error != 0) {
    return unusable(fmt::format("a direct read failed: {}", std::strerror(error)));
  }
  *descriptor = std::move(direct);
  return {
      .usable = true, .memory_alignment = alignment.memory, .offset_alignment = alignment.offset, .how = alignment.how};
}

}  // namespace noria

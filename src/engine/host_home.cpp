#include "engine/host_home.h"

#include <noria/error.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace noria {

std::shared_ptr<HostBlock> HostBlock::pinned(DeviceBackend& backend, Bytes bytes) {
  std::shared_ptr<HostBlock> block(new HostBlock);
  block->pinned_ = backend.allocate_pinned(bytes);
  block->data_ = block->pinned_.data();
  block->bytes_ = bytes;
  return block;
}

std::shared_ptr<HostBlock> HostBlock::pageable(Bytes bytes) {
  std::shared_ptr<HostBlock> block(new HostBlock);
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  NORIA_CHECK(memory != MAP_FAILED, Error,
              "the system has no " + format_bytes(bytes) + " of host memory left (" + std::strerror(errno) +
                  "); give a smaller host_budget or a disk tier");
  block->data_ = static_cast<std::byte*>(memory);
  block->bytes_ = bytes;
  return block;
}

HostBlock::~HostBlock() {
  if (!pinned_ && data_ != nullptr) {
    ::munmap(data_, bytes_);
  }
}

Bytes HostBlock::booked_bytes() const { return pinned_ ? pinned_.booked_bytes() : align_up(bytes_, 4096); }

Bytes HostHome::disk_bytes() const {
  Bytes sum = 0;
  for (FileExtent const& extent : extents_) {
    sum += extent.bytes;
  }
  return sum;
}

void HostHome::read_files(std::span<std::byte> group) const {
  SourceFile const* checked = nullptr;
  for (FileExtent const& extent : extents_) {
    extent.file->file().read_exact(extent.file_offset, group.subspan(extent.group_offset, extent.bytes));
  }
  for (MemoryPart const& part : parts_) {
    std::memcpy(group.data() + part.group_offset, part.block->data(), part.block->bytes());
  }
  // After the bytes: a file that was written while we read must not become weights.
  for (FileExtent const& extent : extents_) {
    if (extent.file.get() != checked) {
      extent.file->file().check_unchanged();
      checked = extent.file.get();
    }
  }
}

}  // namespace noria

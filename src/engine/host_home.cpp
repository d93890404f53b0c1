#include "engine/host_home.h"

#include <noria/error.h>
#include <sys/mman.h>

#include <algorithm>
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

HostHome::HostHome(std::vector<FileExtent> extents, std::vector<MemoryPart> parts)
    : extents_(std::move(extents)), parts_(std::move(parts)) {
  std::vector<ReadPiece> pieces;
  pieces.reserve(extents_.size());
  for (FileExtent const& extent : extents_) {
    auto const known = std::ranges::find(files_, extent.file);
    auto const file = static_cast<std::uint32_t>(known - files_.begin());
    if (known == files_.end()) {
      files_.push_back(extent.file);
    }
    pieces.push_back(
        {.file = file, .offset = extent.file_offset, .length = extent.bytes, .destination = extent.group_offset});
  }
  plan_ = std::make_shared<ReadPlan const>(ReadPlan::make(pieces));
}

void HostHome::copy_parts(std::span<std::byte> group) const {
  for (MemoryPart const& part : parts_) {
    std::memcpy(group.data() + part.group_offset, part.block->data(), part.block->bytes());
  }
}

}  // namespace noria

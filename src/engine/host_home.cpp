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

FileExtent HostHome::extent_at(Bytes group_offset, Bytes bytes) const {
  auto const found = std::ranges::find_if(extents_, [&](FileExtent const& e) {
    return e.group_offset <= group_offset && group_offset + bytes <= e.group_offset + e.bytes;
  });
  NORIA_ASSERT(found != extents_.end() && (!found->conversion || found->bytes == bytes), "a page is in one extent");
  FileExtent out = *found;
  out.file_offset += group_offset - found->group_offset;
  out.group_offset = group_offset;
  out.bytes = bytes;
  return out;
}

HostHome::HostHome(std::vector<FileExtent> extents, std::vector<MemoryPart> parts)
    : extents_(std::move(extents)), parts_(std::move(parts)) {
  std::vector<ReadPiece> pieces;
  pieces.reserve(extents_.size());
  bool const converts = std::ranges::any_of(extents_, [](FileExtent const& e) { return e.conversion.has_value(); });
  std::vector<Converted> table;
  for (FileExtent const& extent : extents_) {
    auto const known = std::ranges::find(files_, extent.file);
    auto const file = static_cast<std::uint32_t>(known - files_.begin());
    if (known == files_.end()) {
      files_.push_back(extent.file);
    }
    Bytes const file_bytes = extent.file_bytes();
    Bytes const begin = table.empty() ? 0 : table.back().end;
    if (converts) {
      table.push_back({.begin = begin,
                       .end = begin + file_bytes,
                       .group_offset = extent.group_offset,
                       .conversion = extent.conversion});
    }
    pieces.push_back({.file = file,
                      .offset = extent.file_offset,
                      .length = file_bytes,
                      .destination = converts ? begin : extent.group_offset});
  }
  if (converts) {
    converted_ = std::make_shared<std::vector<Converted> const>(std::move(table));
  }
  plan_ = std::make_shared<ReadPlan const>(ReadPlan::make(pieces));
}

ReadRequest HostHome::request(std::span<std::byte> group) const {
  ReadRequest request{.files = files_, .plan = plan_, .destination = group};
  if (converted_) {
    request.deliver = [table = converted_, group](Bytes place, std::span<std::byte const> bytes) {
      deliver(*table, group.data(), place, bytes);
    };
  }
  return request;
}

void HostHome::deliver(std::span<Converted const> table, std::byte* group, Bytes place,
                       std::span<std::byte const> bytes) {
  // Neighbours in the file may come together.
  auto entry = std::ranges::upper_bound(table, place, {}, &Converted::begin) - 1;
  while (!bytes.empty()) {
    std::span<std::byte const> const part = bytes.first(std::min<Bytes>(bytes.size(), entry->end - place));
    Bytes const skipped = place - entry->begin;
    if (std::optional<Conversion> const& conversion = entry->conversion) {
      Bytes const target = skipped / c10::elementSize(conversion->from) * c10::elementSize(conversion->to);
      conversion->apply(part, group + entry->group_offset + target);
    } else {
      std::memcpy(group + entry->group_offset + skipped, part.data(), part.size());
    }
    place += part.size();
    bytes = bytes.subspan(part.size());
    ++entry;
  }
}

void FileExtent::read_exact(std::byte* target) const {
  if (!conversion) {
    file->file().read_exact(file_offset, {target, bytes});
  } else {
    std::vector<std::byte> source(file_bytes());
    file->file().read_exact(file_offset, source);
    conversion->apply(source, target);
  }
  file->file().check_unchanged();
}

void HostHome::copy_parts(std::span<std::byte> group) const {
  for (MemoryPart const& part : parts_) {
    std::memcpy(group.data() + part.group_offset, part.block->data(), part.block->bytes());
  }
}

}  // namespace noria

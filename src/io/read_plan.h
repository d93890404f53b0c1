/// Which parts of which files to read, and where each byte goes: computed once per group, pure.
#pragma once

#include <noria/bytes.h>

#include <cstdint>
#include <span>
#include <vector>

namespace noria {

/// Bytes of a file that somebody wants at a place of some block of memory (an offset in it, not an address).
struct ReadPiece {
  std::uint32_t file = 0;
  Bytes offset = 0;
  Bytes length = 0;
  Bytes destination = 0;
};

struct ReadPlanOptions {
  /// Reads never cross a multiple of this. A power of two; 4 MiB is the knee of public sweeps (notes/disk_tier.md B0).
  Bytes chunk_bytes = Bytes{4} << 20U;
  /// Pieces closer than this are read together: cheaper than another command.
  Bytes merge_gap_bytes = Bytes{256} << 10U;
  /// ... as long as at most this share of what is read is thrown away.
  double waste = 0.05;
};

/// From `source` bytes after the extent's begin to `destination`.
struct ReadCopy {
  Bytes source = 0;
  Bytes destination = 0;
  Bytes length = 0;
  friend bool operator==(ReadCopy const&, ReadCopy const&) = default;
};

/// One read: [begin, end) of a file, inside one chunk of the grid; every byte of every copy lies in it.
struct ReadExtent {
  std::uint32_t file = 0;
  std::uint32_t first_copy = 0;
  std::uint32_t copy_count = 0;
  Bytes begin = 0;
  Bytes end = 0;
  [[nodiscard]] Bytes bytes() const noexcept { return end - begin; }
};

/// Extents are sorted by (file, begin) and never overlap, even where pieces do: a byte is read once.
class ReadPlan {
 public:
  ReadPlan() = default;
  /// Throws std::invalid_argument when a piece's end does not fit in 64 bits or two destinations overlap.
  static ReadPlan make(std::span<ReadPiece const> pieces, ReadPlanOptions const& options = {});

  [[nodiscard]] std::span<ReadExtent const> extents() const noexcept { return extents_; }
  [[nodiscard]] std::span<ReadCopy const> copies(ReadExtent const& extent) const noexcept {
    return std::span(copies_).subspan(extent.first_copy, extent.copy_count);
  }
  /// What the pieces asked for, and what the extents read for it.
  [[nodiscard]] Bytes wanted_bytes() const noexcept { return wanted_bytes_; }
  [[nodiscard]] Bytes read_bytes() const noexcept { return read_bytes_; }
  /// One past the last destination byte.
  [[nodiscard]] Bytes destination_bytes() const noexcept { return destination_bytes_; }
  [[nodiscard]] Bytes chunk_bytes() const noexcept { return chunk_bytes_; }

 private:
  std::vector<ReadExtent> extents_;
  std::vector<ReadCopy> copies_;
  Bytes wanted_bytes_ = 0;
  Bytes read_bytes_ = 0;
  Bytes destination_bytes_ = 0;
  Bytes chunk_bytes_ = 0;
};

}  // namespace noria

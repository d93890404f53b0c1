#include "io/read_plan.h"

#include <fmt/format.h>
#include <noria/error.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <tuple>

namespace noria {
namespace {

Bytes end_of(ReadPiece const& piece) { return piece.offset + piece.length; }

std::vector<ReadPiece> checked(std::span<ReadPiece const> pieces) {
  constexpr Bytes kMost = std::numeric_limits<Bytes>::max();
  std::vector<ReadPiece> kept;
  kept.reserve(pieces.size());
  for (ReadPiece const& piece : pieces) {
    if (piece.length > kMost - piece.offset || piece.length > kMost - piece.destination) {
      throw std::invalid_argument(fmt::format("a read of {} bytes at {} to {} does not fit in 64 bits", piece.length,
                                              piece.offset, piece.destination));
    }
    if (piece.length != 0) {
      kept.push_back(piece);
    }
  }
  std::ranges::sort(kept, {}, &ReadPiece::destination);
  auto const overlap = std::ranges::adjacent_find(
      kept, [](ReadPiece const& a, ReadPiece const& b) { return a.destination + a.length > b.destination; });
  if (overlap != kept.end()) {
    throw std::invalid_argument(
        fmt::format("two reads write the same place: {} bytes at destination {} and {} bytes at {}", overlap->length,
                    overlap->destination, std::next(overlap)->length, std::next(overlap)->destination));
  }
  std::ranges::sort(kept, {}, [](ReadPiece const& p) { return std::tie(p.file, p.offset, p.length, p.destination); });
  return kept;
}

// How many of the pieces, from the first on, are read as one run.
std::size_t run_length(std::span<ReadPiece const> pieces, ReadPlanOptions const& options) {
  Bytes const begin = pieces.front().offset;
  Bytes end = end_of(pieces.front());
  Bytes waste = 0;
  std::size_t count = 1;
  for (; count < pieces.size() && pieces[count].file == pieces.front().file; ++count) {
    ReadPiece const& next = pieces[count];
    Bytes const gap = next.offset > end ? next.offset - end : 0;
    Bytes const new_end = std::max(end, end_of(next));
    auto const allowed = options.waste * static_cast<double>(new_end - begin);
    if (gap != 0 && (gap >= options.merge_gap_bytes || static_cast<double>(waste + gap) > allowed)) {
      break;
    }
    waste += gap;
    end = new_end;
  }
  return count;
}

// The part of a piece that lies in one cell of the grid, with its place in the file.
struct CellPart {
  Bytes cell;
  Bytes begin;
  Bytes length;
  Bytes destination;
};

std::vector<CellPart> cut(std::span<ReadPiece const> run, Bytes chunk) {
  std::vector<CellPart> parts;
  for (ReadPiece const& piece : run) {
    for (Bytes at = piece.offset; at < end_of(piece);) {
      Bytes const cell = at / chunk;
      // Not (cell + 1) * chunk: the last cell of the address space has no end in 64 bits.
      Bytes const length = std::min(end_of(piece) - at, chunk - at % chunk);
      parts.push_back(
          {.cell = cell, .begin = at, .length = length, .destination = piece.destination + (at - piece.offset)});
      at += length;
    }
  }
  std::ranges::sort(parts, {},
                    [](CellPart const& part) { return std::tie(part.begin, part.length, part.destination); });
  return parts;
}

}  // namespace

ReadPlan ReadPlan::make(std::span<ReadPiece const> pieces, ReadPlanOptions const& options) {
  if (!std::has_single_bit(options.chunk_bytes)) {
    throw std::invalid_argument(fmt::format("chunk size {} is not a power of two", options.chunk_bytes));
  }
  std::vector<ReadPiece> const sorted = checked(pieces);
  ReadPlan plan;
  plan.chunk_bytes_ = options.chunk_bytes;
  for (std::span<ReadPiece const> rest = sorted; !rest.empty();) {
    auto const run = rest.first(run_length(rest, options));
    rest = rest.subspan(run.size());
    bool new_extent = true;
    Bytes cell = 0;
    for (CellPart const& part : cut(run, options.chunk_bytes)) {
      if (new_extent || part.cell != cell) {
        plan.extents_.push_back({.file = run.front().file,
                                 .first_copy = static_cast<std::uint32_t>(plan.copies_.size()),
                                 .begin = part.begin,
                                 .end = part.begin});
        cell = part.cell;
        new_extent = false;
      }
      ReadExtent& extent = plan.extents_.back();
      extent.end = std::max(extent.end, part.begin + part.length);
      plan.wanted_bytes_ += part.length;
      plan.destination_bytes_ = std::max(plan.destination_bytes_, part.destination + part.length);
      Bytes const source = part.begin - extent.begin;
      if (extent.copy_count != 0) {
        ReadCopy& last = plan.copies_.back();
        if (last.source + last.length == source && last.destination + last.length == part.destination) {
          last.length += part.length;
          continue;
        }
      }
      plan.copies_.push_back({.source = source, .destination = part.destination, .length = part.length});
      ++extent.copy_count;
    }
  }
  for (ReadExtent const& extent : plan.extents_) {
    plan.read_bytes_ += extent.bytes();
  }
  return plan;
}

}  // namespace noria

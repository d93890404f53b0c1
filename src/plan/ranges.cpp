#include "plan/ranges.h"

#include <noria/error.h>

#include <algorithm>

namespace noria::plan {
namespace {

struct Candidate {
  Bytes begin = 0;
  std::uint64_t last_use = 0;  // of the most recently used group that would go
  Bytes largest_run = 0;       // left whole beside it
  bool operator<(Candidate const& other) const {
    return largest_run != other.largest_run ? largest_run > other.largest_run : last_use < other.last_use;
  }
};

}  // namespace

std::optional<RangeMap::Placement> RangeMap::place(GroupIndex group, Bytes bytes, Side side,
                                                   std::function<Tenancy(GroupIndex)> const& tenancy) {
  if (bytes > size_) {
    return std::nullopt;
  }
  std::vector<Tenancy> tenants;
  tenants.reserve(held_.size());
  for (Range const& range : held_) {
    tenants.push_back(tenancy(range.group));
  }
  std::vector<Bytes> begins = begins_for(bytes);
  if (side == Side::kHigh) {
    std::ranges::reverse(begins);
  }
  // With very many ranges (small groups in a ring sized by a large one) the run is not worth computing everywhere.
  bool const weigh_runs = held_.size() <= 64;

  std::optional<Candidate> best;
  for (Bytes const begin : begins) {
    Bytes const end = begin + bytes;
    Candidate candidate{.begin = begin};
    bool possible = true;
    auto first = std::ranges::partition_point(held_, [&](Range const& r) { return r.end <= begin; });
    for (auto range = first; range != held_.end() && range->begin < end && possible; ++range) {
      Tenancy const& tenant = tenants[static_cast<std::size_t>(range - held_.begin())];
      possible = !tenant.stays;
      candidate.last_use = std::max(candidate.last_use, tenant.last_use + 1);
    }
    if (!possible) {
      continue;
    }
    if (weigh_runs) {
      Bytes run_begin = 0;
      auto const close_run = [&](Bytes at, Bytes next) {
        candidate.largest_run = std::max(candidate.largest_run, at > run_begin ? at - run_begin : 0);
        run_begin = std::max(run_begin, next);
      };
      bool placed = false;
      for (std::size_t i = 0; i < held_.size(); ++i) {
        if (!placed && held_[i].begin >= begin) {
          close_run(begin, end);
          placed = true;
        }
        if (tenants[i].stays_long) {
          close_run(held_[i].begin, held_[i].end);
        }
      }
      if (!placed) {
        close_run(begin, end);
      }
      close_run(size_, size_);
    }
    if (!best || candidate < *best) {
      best = candidate;
    }
  }
  if (!best) {
    return std::nullopt;
  }
  return Placement{.begin = best->begin,
                   .evicted = take({.begin = best->begin, .end = best->begin + bytes, .group = group})};
}

std::optional<RangeMap::Piece> RangeMap::place_piece(GroupIndex group, Bytes bytes, Bytes least,
                                                     std::function<Tenancy(GroupIndex)> const& tenancy) {
  if (bytes > size_) {
    return std::nullopt;
  }
  constexpr std::size_t kForLong = std::numeric_limits<std::size_t>::max();
  Piece best;
  std::size_t best_uses = kForLong;
  for (Bytes const begin : begins_for(bytes)) {
    Bytes const end = begin + bytes;
    Piece piece{.place_begin = begin, .begin = begin, .end = begin, .evicted = {}};
    Bytes free_from = begin;
    auto const close = [&](Bytes at, Bytes next) {
      if (at > free_from && at - free_from > piece.bytes()) {
        piece.begin = free_from;
        piece.end = at;
      }
      free_from = next;
    };
    std::size_t uses = 0;  // until the place is free
    for (Range const& range : held_) {
      if (range.end <= begin || range.begin >= end) {
        continue;
      }
      if (Tenancy const tenant = tenancy(range.group); tenant.stays) {
        uses = std::max(uses, tenant.uses_left);
        close(range.begin, range.end);
      }
    }
    close(end, end);
    if (uses < best_uses || (uses == best_uses && piece.bytes() > best.bytes())) {
      best = piece;
      best_uses = uses;
    }
  }
  if (best_uses == kForLong || best.bytes() < least) {
    return std::nullopt;
  }
  best.evicted = take({.begin = best.begin, .end = best.end, .group = group});
  return best;
}

std::optional<RangeMap::Piece> RangeMap::extend(GroupIndex group, Bytes place_begin, Bytes bytes, Bytes least,
                                                std::function<Tenancy(GroupIndex)> const& tenancy) {
  auto const own = std::ranges::find(held_, group, &Range::group);
  Piece piece{.place_begin = place_begin, .begin = place_begin, .end = place_begin + bytes, .evicted = {}};
  for (Range const& range : held_) {
    if (range.group != group && tenancy(range.group).stays) {
      if (range.end <= own->begin) {
        piece.begin = std::max(piece.begin, range.end);
      } else {
        piece.end = std::min(piece.end, range.begin);
      }
    }
  }
  if (piece.bytes() < bytes && piece.bytes() - (own->end - own->begin) < least) {
    return std::nullopt;
  }
  remove(group);
  piece.evicted = take({.begin = piece.begin, .end = piece.end, .group = group});
  return piece;
}

std::vector<Bytes> RangeMap::begins_for(Bytes bytes) const {
  std::vector<Bytes> begins{0, size_ - bytes};
  begins.reserve(2 + 2 * held_.size());
  for (Range const& range : held_) {
    if (range.end + bytes <= size_) {
      begins.push_back(range.end);
    }
    if (range.begin >= bytes) {
      begins.push_back(range.begin - bytes);
    }
  }
  std::ranges::sort(begins);
  auto const repeated = std::ranges::unique(begins);
  begins.erase(repeated.begin(), repeated.end());
  return begins;
}

std::vector<GroupIndex> RangeMap::take(Range range) {
  std::vector<GroupIndex> evicted;
  std::erase_if(held_, [&](Range const& other) {
    bool const overlaps = other.begin < range.end && other.end > range.begin;
    if (overlaps) {
      evicted.push_back(other.group);
    }
    return overlaps;
  });
  auto const where = std::ranges::partition_point(held_, [&](Range const& r) { return r.begin < range.end; });
  held_.insert(where, range);
  return evicted;
}

void RangeMap::put(GroupIndex group, Bytes begin, Bytes bytes) {
  std::vector<GroupIndex> const evicted = take({.begin = begin, .end = begin + bytes, .group = group});
  NORIA_ASSERT(evicted.empty() && begin + bytes <= size_, "nothing stands where a group is put");
}

void RangeMap::remove(GroupIndex group) {
  std::erase_if(held_, [group](Range const& range) { return range.group == group; });
}

Bytes RangeMap::held_bytes() const {
  Bytes sum = 0;
  for (Range const& range : held_) {
    sum += range.end - range.begin;
  }
  return sum;
}

std::vector<GroupIndex> RangeMap::groups() const {
  std::vector<GroupIndex> out;
  out.reserve(held_.size());
  for (Range const& range : held_) {
    out.push_back(range.group);
  }
  return out;
}

}  // namespace noria::plan

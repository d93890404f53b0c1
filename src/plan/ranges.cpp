#include "plan/ranges.h"

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
  // A best position begins or ends at an edge of something.
  std::vector<Bytes> begins{0, size_ - bytes};
  begins.reserve(2 + 2 * held_.size());
  for (Range const& range : held_) {
    begins.push_back(range.end);
    if (range.begin >= bytes) {
      begins.push_back(range.begin - bytes);
    }
  }
  std::ranges::sort(begins);
  auto const repeated = std::ranges::unique(begins);
  begins.erase(repeated.begin(), repeated.end());
  if (side == Side::kHigh) {
    std::ranges::reverse(begins);
  }
  // With very many ranges (small groups in a ring sized by a large one) the run is not worth computing everywhere.
  bool const weigh_runs = held_.size() <= 64;

  std::optional<Candidate> best;
  for (Bytes const begin : begins) {
    Bytes const end = begin + bytes;
    if (end > size_) {
      continue;
    }
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
  Placement placement{.begin = best->begin, .evicted = {}};
  Bytes const end = best->begin + bytes;
  std::erase_if(held_, [&](Range const& range) {
    bool const overlaps = range.begin < end && range.end > best->begin;
    if (overlaps) {
      placement.evicted.push_back(range.group);
    }
    return overlaps;
  });
  auto const where = std::ranges::partition_point(held_, [&](Range const& r) { return r.begin < end; });
  held_.insert(where, Range{.begin = best->begin, .end = end, .group = group});
  return placement;
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

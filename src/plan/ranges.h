/// Which bytes of the ring each group stands in, and where the next one goes.
#pragma once

#include <noria/bytes.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "plan/order.h"

namespace noria::plan {

/// What placing a new group may do to one that is there.
struct Tenancy {
  /// Never evict: in use, or needed before the new one.
  bool stays = false;
  /// Stays and will go on staying (a prefetched group, a container around the current one): space beside it is split
  /// for long. A group whose use is about to end is not.
  bool stays_long = false;
  /// Among those that may go, lower goes first: the moment of its last use.
  std::uint64_t last_use = 0;
};

/// Note [Ranges]
/// Groups differ in size, so the ring is not slots but byte ranges. A new group goes where the largest run of bytes
/// stays whole; among equals, where it evicts what has rested the longest. On equal groups this is a ring of slots. On
/// unequal ones two neighbours end up at opposite edges, so that any pair whose sum fits always finds room: a next-fit
/// cursor would need the larger one twice.
class RangeMap {
 public:
  enum class Side { kLow, kHigh };  ///< which edge wins among equals; containers go high, out of the way

  struct Placement {
    Bytes begin = 0;
    std::vector<GroupIndex> evicted;  ///< already removed from the map
  };

  explicit RangeMap(Bytes size = 0) : size_(size) {}

  /// Places `group`, which must not be in the map. Asks `tenancy` about each group that would have to go. Empty when no
  /// run of `bytes` can be had; the map is then unchanged.
  std::optional<Placement> place(GroupIndex group, Bytes bytes, Side side,
                                 std::function<Tenancy(GroupIndex)> const& tenancy);
  void remove(GroupIndex group);
  void clear() { held_.clear(); }

  [[nodiscard]] Bytes size() const { return size_; }
  [[nodiscard]] Bytes held_bytes() const;
  [[nodiscard]] std::vector<GroupIndex> groups() const;

 private:
  struct Range {
    Bytes begin;
    Bytes end;
    GroupIndex group;
  };

  std::vector<Range> held_;  // sorted, disjoint
  Bytes size_;
};

}  // namespace noria::plan

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
  /// For groups that stay: after how many more uses they may go. 1: the present use, or the next when there is none.
  std::size_t uses_left = 1;
  /// Among those that may go, lower goes first: the moment of its last use.
  std::uint64_t last_use = 0;
};

/// Note [Ranges]
/// Groups differ in size, so the ring is not slots but byte ranges. A new group goes where the largest run of bytes
/// stays whole; among equals, where it evicts what has rested the longest. On equal groups this is a ring of slots. On
/// unequal ones two neighbours end up at opposite edges, so that any pair whose sum fits always finds room: a next-fit
/// cursor would need the larger one twice.
///
/// A group that finds no room because of others that will go before it is used can take what is free of its place
/// already, and the rest as they go.
class RangeMap {
 public:
  enum class Side { kLow, kHigh };  ///< which edge wins among equals; containers go high, out of the way

  struct Placement {
    Bytes begin = 0;
    std::vector<GroupIndex> evicted;  ///< already removed from the map
  };

  /// The piece that a group has of its place.
  struct Piece {
    Bytes place_begin = 0;
    Bytes begin = 0;
    Bytes end = 0;
    std::vector<GroupIndex> evicted;

    [[nodiscard]] Bytes bytes() const { return end - begin; }
  };

  explicit RangeMap(Bytes size = 0) : size_(size) {}

  /// Places `group`, which must not be in the map. Asks `tenancy` about each group that would have to go. Empty when no
  /// run of `bytes` can be had; the map is then unchanged.
  std::optional<Placement> place(GroupIndex group, Bytes bytes, Side side,
                                 std::function<Tenancy(GroupIndex)> const& tenancy);
  /// Takes the largest piece of the place for `group` that will be free first. Empty when it has fewer than `least`
  /// bytes; the map is then unchanged.
  std::optional<Piece> place_piece(GroupIndex group, Bytes bytes, Bytes least,
                                   std::function<Tenancy(GroupIndex)> const& tenancy);
  /// Takes more of the place of which `group` has a piece. Empty when all of it cannot be had yet, and what can is
  /// fewer than `least` bytes.
  std::optional<Piece> extend(GroupIndex group, Bytes place_begin, Bytes bytes, Bytes least,
                              std::function<Tenancy(GroupIndex)> const& tenancy);
  /// Puts `group` where nothing stands.
  void put(GroupIndex group, Bytes begin, Bytes bytes);
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

  /// Where a place for `bytes` may begin: a best one begins or ends at an edge of something. In ascending order.
  [[nodiscard]] std::vector<Bytes> begins_for(Bytes bytes) const;
  /// Removes all that overlaps the range and puts `group` there. Returns what was removed.
  std::vector<GroupIndex> take(Range range);

  std::vector<Range> held_;  // sorted, disjoint
  Bytes size_;
};

}  // namespace noria::plan

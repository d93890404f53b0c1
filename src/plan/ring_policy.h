/// Who may be sent out of the ring for whom: one policy for the engine and for the plan that predicts it.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "plan/ranges.h"

namespace noria::plan {

/// How far loading ahead looks, in uses: past residents to the next streamed groups.
inline constexpr std::size_t kLookAhead = 64;
/// Loads that nobody waits for yet; more would only delay one that a surprise needs at once.
inline constexpr std::size_t kMostAhead = 16;

/// A group in the ring, as the policy sees it.
struct Tenant {
  bool in_use = false;
  bool nested = false;           ///< of a module around others: in use for long
  bool used_since_load = false;  ///< false: loaded ahead, and still awaited
  std::uint64_t last_use = 0;
};

struct RoomRequest {
  GroupIndex group = 0;
  Bytes bytes = 0;
  bool nested = false;
  /// Needed now, rather than loaded ahead.
  bool demanded = false;
  /// Groups that are used before this one, or together with it; they stay.
  std::span<GroupIndex const> sooner;
};

/// Finds a place in `ring`. What was loaded ahead goes last, and only for what is demanded. Empty when there is none;
/// the ring is then unchanged.
std::optional<RangeMap::Placement> find_room(RangeMap& ring, RoomRequest const& request,
                                             std::function<Tenant(GroupIndex)> const& tenant_of);

/// For a group to be loaded ahead that finds no place yet: what is free of the one that will be free first. Only a
/// piece that is worth a copy of its own.
std::optional<RangeMap::Piece> find_piece(RangeMap& ring, RoomRequest const& request,
                                          std::function<Tenant(GroupIndex)> const& tenant_of);

/// More of the place, from `place_begin`, of which the group has a piece: the rest, or what is worth a copy of its own.
std::optional<RangeMap::Piece> extend_piece(RangeMap& ring, RoomRequest const& request, Bytes place_begin,
                                            std::function<Tenant(GroupIndex)> const& tenant_of);

}  // namespace noria::plan

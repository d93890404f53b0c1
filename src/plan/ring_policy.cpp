#include "plan/ring_policy.h"

#include <algorithm>
#include <limits>

namespace noria::plan {
namespace {

/// A copy of less than this share of a group costs the link more than it hides.
constexpr Bytes kLeastShare = 16;

Bytes least_piece(RoomRequest const& request) { return std::max<Bytes>(request.bytes / kLeastShare, 1); }

std::function<Tenancy(GroupIndex)> tenancy_for(RoomRequest const& request,
                                               std::function<Tenant(GroupIndex)> const& tenant_of, bool keep_awaited) {
  return [&request, &tenant_of, keep_awaited](GroupIndex other) {
    Tenant const tenant = tenant_of(other);
    bool const sooner = std::ranges::find(request.sooner, other) != request.sooner.end();
    bool const awaited = keep_awaited && !tenant.used_since_load && (sooner || request.demanded);
    return Tenancy{.stays = tenant.in_use || sooner || awaited,
                   .stays_long = (tenant.in_use && tenant.nested) || (!tenant.in_use && sooner) || awaited,
                   .last_use = tenant.last_use};
  };
}

/// As tenancy_for, and knows who goes when.
std::function<Tenancy(GroupIndex)> tenancy_in_time(RangeMap const& ring, RoomRequest const& request,
                                                   std::function<Tenant(GroupIndex)> const& tenant_of) {
  auto const in_use = [&](GroupIndex group) {
    Tenant const tenant = tenant_of(group);
    return tenant.in_use && !tenant.nested;
  };
  std::size_t const present = std::ranges::any_of(ring.groups(), in_use) ? 1 : 0;
  return [&request, &tenant_of, present, keeping = tenancy_for(request, tenant_of, true)](GroupIndex other) {
    Tenancy out = keeping(other);
    Tenant const tenant = tenant_of(other);
    if (tenant.in_use && tenant.nested) {
      out.uses_left = std::numeric_limits<std::size_t>::max();
    } else if (auto const found = std::ranges::find(request.sooner, other); found != request.sooner.end()) {
      out.uses_left = present + static_cast<std::size_t>(found - request.sooner.begin()) + 1;
    }
    return out;
  };
}

}  // namespace

std::optional<RangeMap::Placement> find_room(RangeMap& ring, RoomRequest const& request,
                                             std::function<Tenant(GroupIndex)> const& tenant_of) {
  auto const side = request.nested ? RangeMap::Side::kHigh : RangeMap::Side::kLow;
  auto placement = ring.place(request.group, request.bytes, side, tenancy_for(request, tenant_of, true));
  if (!placement && request.demanded) {
    placement = ring.place(request.group, request.bytes, side, tenancy_for(request, tenant_of, false));
  }
  return placement;
}

std::optional<RangeMap::Piece> find_piece(RangeMap& ring, RoomRequest const& request,
                                          std::function<Tenant(GroupIndex)> const& tenant_of) {
  return ring.place_piece(request.group, request.bytes, least_piece(request),
                          tenancy_in_time(ring, request, tenant_of));
}

std::optional<RangeMap::Piece> extend_piece(RangeMap& ring, RoomRequest const& request, Bytes place_begin,
                                            std::function<Tenant(GroupIndex)> const& tenant_of) {
  return ring.extend(request.group, place_begin, request.bytes, least_piece(request),
                     tenancy_for(request, tenant_of, true));
}

}  // namespace noria::plan

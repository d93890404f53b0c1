#include "plan/ring_policy.h"

#include <algorithm>

namespace noria::plan {

std::optional<RangeMap::Placement> find_room(RangeMap& ring, RoomRequest const& request,
                                             std::function<Tenant(GroupIndex)> const& tenant_of) {
  bool keep_awaited = true;
  auto const tenancy = [&](GroupIndex other) {
    Tenant const tenant = tenant_of(other);
    bool const sooner = std::ranges::find(request.sooner, other) != request.sooner.end();
    bool const awaited = keep_awaited && !tenant.used_since_load && (sooner || request.demanded);
    return Tenancy{.stays = tenant.in_use || sooner || awaited,
                   .stays_long = (tenant.in_use && tenant.nested) || (!tenant.in_use && sooner) || awaited,
                   .last_use = tenant.last_use};
  };
  auto const side = request.nested ? RangeMap::Side::kHigh : RangeMap::Side::kLow;
  std::optional<RangeMap::Placement> placement = ring.place(request.group, request.bytes, side, tenancy);
  if (!placement && request.demanded) {
    keep_awaited = false;
    placement = ring.place(request.group, request.bytes, side, tenancy);
  }
  return placement;
}

}  // namespace noria::plan

/// Which groups stay on the device under a byte budget, and how large the ring for the others is.
#pragma once

#include <noria/bytes.h>

#include <cstdint>
#include <span>
#include <vector>

#include "plan/order.h"

namespace noria::plan {

struct GroupUse {
  Bytes bytes = 0;                      ///< on the device, padding included
  std::uint32_t uses = 1;               ///< per pass
  std::vector<GroupIndex> around = {};  ///< groups in use whenever this one is: those of the modules around it
  bool kept = false;                    ///< a resident in any case
};

struct Speeds;

struct Residency {
  std::vector<bool> resident;
  std::vector<Bytes> offsets;  ///< of residents, from the start of the arena; others 0
  Bytes resident_bytes = 0;
  Bytes ring_bytes = 0;      ///< follows the residents in the arena
  Bytes streamed_bytes = 0;  ///< loaded in each pass
  std::uint32_t depth = 0;   ///< groups in a row that the ring holds together
};

/// The smallest budget that works: what is kept, and the largest set of other groups in use together. `largest` names
/// the group whose use needs it.
struct SmallestBudget {
  Bytes bytes = 0;
  GroupIndex largest = 0;
};
SmallestBudget smallest_budget(std::span<GroupUse const> groups);

/// The smallest budget with which a ring of `depth` groups in a row needs no resident.
Bytes ring_budget(std::span<GroupUse const> groups, std::span<GroupIndex const> order, std::uint32_t depth);

/// Note [Residents]
/// Every resident saves its bytes in every pass; a deeper ring saves nothing, it only hides a copy behind one more
/// computation. So the ring holds some groups in a row (two hide the copies of equal groups) and all other bytes go to
/// residents, evenly spaced in order of use, so that each streamed group has the computation of its resident neighbours
/// to hide behind. How large the groups are that stay in any case, and how many in a row the ring holds (at most
/// `depth`), is tried out: with `speeds` the plan with the quickest steady pass is taken and improved by exchanging
/// groups; without, as on a device that copies and computes by turns, the one that streams the fewest bytes.
///
/// `order` is the order of uses in a pass. Throws BudgetError when the budget is below smallest_budget; the message has
/// no names, the caller adds them.
Residency choose_residents(std::span<GroupUse const> groups, std::span<GroupIndex const> order, Bytes budget,
                           std::uint32_t depth, Speeds const* speeds = nullptr);

/// Everything is streamed through a ring of `ring_bytes`.
Residency no_residents(std::span<GroupUse const> groups, Bytes ring_bytes);

}  // namespace noria::plan

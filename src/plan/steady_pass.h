/// How long a pass takes once the order is learned, predicted from the engine's own policy.
#pragma once

#include <span>
#include <vector>

#include "plan/residency.h"

namespace noria::plan {

/// What uses and copies cost. Measured in the first passes, or assumed.
struct Speeds {
  /// Per use in the order: seconds from its beginning to that of the next, waiting for loads left out.
  std::vector<double> use_seconds;
  double bytes_per_second = 1.0;
  double latency_seconds = 0.0;

  /// Before anything was measured: all uses take equally long, and together a quarter as long as copying all weights.
  /// Where that is too little no plan is slow; where it is too much the one with the fewest bytes is right.
  static Speeds assumed(std::span<GroupUse const> groups, std::size_t uses);
};

/// Seconds of a pass through `order`, repeated, with `residency`. The copy stream takes loads one after the other, each
/// when its range is free; computation waits for each; the host is ahead of both.
double steady_seconds(std::span<GroupUse const> groups, std::span<GroupIndex const> order, Residency const& residency,
                      Speeds const& speeds);

}  // namespace noria::plan

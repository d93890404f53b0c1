/// How large the groups of weights are that move together.
#pragma once

namespace noria {

enum class Granularity {
  kAuto,   ///< blocks, and smaller where a block is large against the budget
  kBlock,  ///< one group per block of a list; what is outside every list, one group per smallest subtree
  kLeaf    ///< one group per module with tensors of its own
};

}  // namespace noria

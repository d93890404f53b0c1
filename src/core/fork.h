/// Telling a forked child from its parent.
#pragma once

#include <cstdint>

namespace noria {

/// How many forks lie between the first call and this process: what was made under another number belongs to a parent,
/// whose threads, locks and device this process does not have. Always 0 where processes do not fork.
std::uint64_t forks();

}  // namespace noria

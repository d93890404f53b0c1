/// How much of its random seeds, kills and rounds a test runs.
#pragma once

#include <cstdlib>
#include <string_view>

namespace noria::testing {

/// `full` with NORIA_LONG=1 in the environment, else a tenth of it, at least 1.
inline int scaled(int full) {
  char const* const wish = std::getenv("NORIA_LONG");
  bool const all = wish != nullptr && std::string_view(wish) == "1";
  return all || full < 10 ? full : full / 10;
}

}  // namespace noria::testing

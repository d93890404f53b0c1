#include <fmt/format.h>
#include <noria/error.h>

#include <cstring>

namespace noria::detail {

void assertion_failed(char const* condition, char const* file, int line, std::string const& message) {
  char const* slash = std::strrchr(file, '/');
  throw Error(fmt::format("internal error in noria, please report it: {} ({} at {}:{})", message, condition,
                          slash != nullptr ? slash + 1 : file, line));
}

}  // namespace noria::detail

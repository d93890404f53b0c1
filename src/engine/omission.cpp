#include "engine/omission.h"

namespace noria {

#if defined(NORIA_DEBUG_ASSERTIONS)
std::atomic<std::uint32_t>& omitted_orderings() {
  static std::atomic<std::uint32_t> omitted{0};
  return omitted;
}
#endif

}  // namespace noria

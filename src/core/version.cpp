#include <noria/version.h>

namespace noria {

char const* version() noexcept { return NORIA_VERSION; }

}  // namespace noria

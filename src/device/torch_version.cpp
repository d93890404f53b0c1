#include "device/torch_version.h"

namespace noria {

std::string_view built_for_torch() noexcept { return NORIA_TORCH_VERSION; }

}  // namespace noria

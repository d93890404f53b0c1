#pragma once

#include <string_view>

namespace noria {

/// The torch this library was compiled against, e.g. "2.13.0". PyTorch promises no C++ ABI across minor versions.
std::string_view built_for_torch() noexcept;

}  // namespace noria

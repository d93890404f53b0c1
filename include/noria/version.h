#pragma once

namespace noria {

/// The version of this library, "major.minor.patch".
char const* version() noexcept;

}  // namespace noria

/// Element types as checkpoints name them.
#pragma once

#include <string_view>

namespace noria {

/// Bits per element of a safetensors dtype name ("BF16": 16, "F4": 4), 0 when this version does not know it.
/// Source: the `Dtype` enum of the safetensors crate, version 0.8.
unsigned dtype_bits(std::string_view name) noexcept;

}  // namespace noria

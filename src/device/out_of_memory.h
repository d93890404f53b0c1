/// Which error texts mean that a device's memory is used up.
#pragma once

#include <span>
#include <string_view>

namespace noria {

struct OutOfMemoryPattern {
  std::string_view device_type;  ///< as torch names it; empty: any device
  std::string_view text;         ///< part of the message
  std::string_view source;       ///< where it was seen
};

/// The whole table, for those who want to read it.
std::span<OutOfMemoryPattern const> out_of_memory_patterns();

/// True when `message` is how a device of this type says that it is out of memory: a pattern of its own or of every
/// device, or its name in capitals before "out of memory", which is the form PyTorch's caching allocators share.
bool says_out_of_memory(std::string_view device_type, std::string_view message);

}  // namespace noria

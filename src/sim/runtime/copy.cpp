#include "sim/runtime/copy.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "sim/runtime/runtime.h"

namespace noria::sim {

std::uint64_t hash_bytes(std::uintptr_t begin, Bytes bytes) {
  using namespace noria::literals;
  auto const* data = reinterpret_cast<unsigned char const*>(begin);  // NOLINT(performance-no-int-to-ptr)
  if (bytes <= 64_MiB) {
    return XXH3_64bits(data, bytes);
  }
  std::uint64_t hash = bytes;
  for (Bytes at = 0; at < bytes; at += 64_KiB) {
    hash = XXH3_64bits_withSeed(data + at, std::min(4_KiB, bytes - at), hash);
  }
  return hash;
}

bool is_poison(std::uintptr_t begin, Bytes bytes) {
  auto const* data = reinterpret_cast<unsigned char const*>(begin);  // NOLINT(performance-no-int-to-ptr)
  return bytes == 0 || (*data == kPoisonByte && std::memcmp(data, data + 1, bytes - 1) == 0);
}

}  // namespace noria::sim

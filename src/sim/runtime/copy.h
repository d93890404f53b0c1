/// A copy that was issued and whose bytes have not moved yet.
#pragma once

#include <noria/bytes.h>

#include <cstdint>

#include "sim/runtime/vector_clock.h"

namespace noria::sim {

struct PendingCopy {
  std::uintptr_t destination = 0;
  std::uintptr_t source = 0;
  Bytes bytes = 0;
  ActorId actor = 0;  ///< the stream it runs on
  Epoch epoch = 0;
  std::uint32_t op = 0;
  std::uint64_t source_hash = 0;  ///< at issue; tells when host code changed a pinned source behind our back
  bool hashed = false;
  bool guards_destination = false;  ///< a pinned destination, which host code must leave poisoned until then
  bool failed = false;              ///< by an injected error: its bytes never arrive
  bool landed = false;

  [[nodiscard]] bool writes(std::uintptr_t begin, std::uintptr_t end) const {
    return destination < end && begin < destination + bytes;
  }
  [[nodiscard]] bool reads(std::uintptr_t begin, std::uintptr_t end) const {
    return source < end && begin < source + bytes;
  }
};

/// Hash of the bytes for PendingCopy::source_hash. Above 64 MiB, of a 4 KiB page out of every 64 KiB.
std::uint64_t hash_bytes(std::uintptr_t begin, Bytes bytes);

/// Whether every byte is kPoisonByte.
bool is_poison(std::uintptr_t begin, Bytes bytes);

}  // namespace noria::sim

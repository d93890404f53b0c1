/// XXH3-128 of bytes on their way to or from a disk: finds damage, does not resist an attacker.
#pragma once

#include <noria/bytes.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace noria {

struct Checksum {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend auto operator<=>(Checksum const&, Checksum const&) = default;
  [[nodiscard]] std::string hex() const;
  /// Throws std::invalid_argument when it is not 32 hexadecimal digits.
  static Checksum from_hex(std::string_view text);
};

Checksum checksum(std::span<std::byte const> bytes);

/// One checksum per `chunk_bytes` of a stream, the last chunk maybe shorter.
class ChunkedChecksum {
 public:
  explicit ChunkedChecksum(Bytes chunk_bytes);
  ~ChunkedChecksum();
  ChunkedChecksum(ChunkedChecksum const&) = delete;
  ChunkedChecksum& operator=(ChunkedChecksum const&) = delete;

  void update(std::span<std::byte const> bytes);
  /// Ends the last chunk; the object is then empty again.
  std::vector<Checksum> finish();

 private:
  void end_chunk();

  struct State;
  std::unique_ptr<State> state_;
  Bytes chunk_bytes_;
  Bytes in_chunk_ = 0;
  std::vector<Checksum> done_;
};

}  // namespace noria

/// Amounts of memory: literals, parsing, printing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace noria {

/// A number of bytes. Always 64 bits and unsigned; differences are taken only where the order is known.
using Bytes = std::uint64_t;

namespace literals {
constexpr Bytes operator""_KiB(unsigned long long n) { return n << 10U; }
constexpr Bytes operator""_MiB(unsigned long long n) { return n << 20U; }
constexpr Bytes operator""_GiB(unsigned long long n) { return n << 30U; }
}  // namespace literals

/// An amount as a user writes it: bytes, or a share of what is free when it is resolved.
struct ByteAmount {
  constexpr ByteAmount(Bytes amount = 0) : bytes(amount) {}  // implicit: an amount is bytes unless it says otherwise
  static constexpr ByteAmount of_free(double share) {
    ByteAmount amount;
    amount.share = share;
    return amount;
  }

  Bytes bytes = 0;
  double share = 0.0;  ///< in (0, 1] when the amount was written as a percentage, else 0
  [[nodiscard]] Bytes resolve(Bytes free_bytes) const;
};

/// Parses "6GiB", "512 MiB", "1.5GB", "4096", "80%". Binary and decimal units, case-insensitive, no negative amounts.
/// Throws std::invalid_argument that shows the text and the accepted forms.
ByteAmount parse_byte_amount(std::string_view text);

/// "1.4 GiB", "12.0 MiB", "512 B": one decimal above a KiB.
std::string format_bytes(Bytes bytes);

/// `value` rounded up to a multiple of `alignment`, a power of two.
constexpr Bytes align_up(Bytes value, Bytes alignment) { return (value + alignment - 1) & ~(alignment - 1); }

}  // namespace noria

/// A reserved stretch of addresses from which simulated memory is cut. Reserving costs nothing; only backed parts can
/// hold bytes. One look-up in a table tells which segment an address belongs to.
#pragma once

#include <noria/bytes.h>

#include <cstdint>
#include <map>
#include <memory>

namespace noria::sim {

struct Segment;

/// What stands behind addresses.
enum class Backing {
  kNothing,  ///< an access is a fault
  kZeroes,   ///< ordinary memory
  kPoison,   ///< reads as kPoisonByte until written; costs memory only where it is written
};

class AddressSpace {
 public:
  /// Segments begin at multiples of this and take multiples of it.
  static constexpr Bytes kGranule = Bytes{2} << 20U;

  /// Reserves `bytes`, or less when the system gives less (half, a quarter, ...).
  explicit AddressSpace(Bytes bytes);
  ~AddressSpace();
  AddressSpace(AddressSpace const&) = delete;
  AddressSpace& operator=(AddressSpace const&) = delete;

  /// The lowest free stretch that holds `bytes`, a multiple of kGranule, owned by `segment`. Throws Error when the
  /// reservation is full.
  std::uintptr_t take(Bytes bytes, Segment* segment);
  void give(std::uintptr_t begin, Bytes bytes);

  [[nodiscard]] bool contains(std::uintptr_t address) const { return address - begin_ < bytes_; }
  /// Whether a segment ever held the address.
  [[nodiscard]] bool was_taken(std::uintptr_t address) const { return address < highest_; }
  /// The segment that owns the address, or null. The address must be inside.
  [[nodiscard]] Segment* owner(std::uintptr_t address) const { return owners_[(address - begin_) / kGranule]; }

 private:
  struct FreeArray {
    void operator()(Segment** array) const;
  };

  std::uintptr_t begin_ = 0;
  Bytes bytes_ = 0;
  std::uintptr_t highest_ = 0;  ///< end of what was ever taken
  std::map<std::uintptr_t, Bytes> free_;
  std::unique_ptr<Segment*[], FreeArray> owners_;  // NOLINT(modernize-avoid-c-arrays): zero pages, not a filled vector
};

/// Puts memory behind page-aligned addresses of an AddressSpace, in place of what was there.
void back_range(std::uintptr_t begin, Bytes bytes, Backing backing);

/// Fills backed bytes with poison; large ranges give their memory back to the system where it allows.
void poison_range(std::uintptr_t begin, Bytes bytes);

}  // namespace noria::sim

/// Who last touched which bytes: the memory of the order checker for one block.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/runtime/vector_clock.h"

namespace noria::sim {

/// One access, small enough to keep many.
struct Stamp {
  Epoch epoch = 0;
  std::uint32_t op = 0;  ///< index into the runtime's table of names
  ActorId actor = 0;
  bool write = false;
};

/// An earlier access that the one checked is not ordered after, and the bytes they share.
struct Conflict {
  Stamp earlier;
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

/// For each byte range of a block: the last write and the reads since. Accesses that a newer one is ordered after are
/// dropped: whoever is ordered after the newer one is ordered after them too (as in FastTrack, Flanagan and Freund,
/// PLDI 2009), so a racy range is still reported, with the newest partner.
class AccessMap {
 public:
  /// The first access to [begin, end) that conflicts with one by an actor that knows `known`.
  [[nodiscard]] std::optional<Conflict> find_conflict(std::uintptr_t begin, std::uintptr_t end, bool write,
                                                      VectorClock const& known) const;

  /// Notes an access to [begin, end), begin < end, by an actor that knows `known`.
  void add(std::uintptr_t begin, std::uintptr_t end, Stamp stamp, VectorClock const& known);

  /// Moves what lies at or above `boundary` into the result.
  AccessMap split(std::uintptr_t boundary);

  /// Appends a map whose ranges all lie above this one's.
  void append(AccessMap&& above);

  /// Forgets accesses that everybody from now on is ordered after, since the host knows them.
  void forget_known(VectorClock const& known);

  void clear() { entries_.clear(); }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::uintptr_t begin;
    std::uintptr_t end;
    Stamp write;  ///< epoch 0: none
    std::vector<Stamp> reads;
  };

  [[nodiscard]] std::vector<Entry>::iterator first_after(std::uintptr_t begin);
  void add_write(std::uintptr_t begin, std::uintptr_t end, Stamp stamp);
  void add_read(std::uintptr_t begin, std::uintptr_t end, Stamp stamp, VectorClock const& known);
  static void note_read(Entry& entry, Stamp stamp, VectorClock const& known);
  void cut(std::uintptr_t boundary);

  std::vector<Entry> entries_;  ///< sorted by begin, disjoint; bytes in none were never touched
};

}  // namespace noria::sim

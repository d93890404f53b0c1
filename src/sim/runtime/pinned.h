/// Host memory the runtime knows: pinned blocks, ranges that were registered or adopted in place, and reserved
/// addresses of dry runs. No clock, no checker.
#pragma once

#include <noria/bytes.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sim/runtime/address_space.h"
#include "sim/runtime/block.h"

namespace noria::sim {

/// Pinned blocks, rounded up to powers of two and cached after use.
class PinnedMemory {
 public:
  explicit PinnedMemory(bool dry);

  /// What a request takes: a power of two, a page at least.
  static Bytes rounded(Bytes bytes);

  Block* take_cached(Bytes bytes);
  Block& take_fresh(Bytes bytes);
  void give(Block& block);
  /// Releases all cached blocks; returns their bytes.
  Bytes release_cached();

  [[nodiscard]] Block* find(std::uintptr_t address) const {
    Segment* const segment = space_.contains(address) ? space_.owner(address) : nullptr;
    Block* const block = segment == nullptr ? nullptr : segment->blocks.front().get();
    return block != nullptr && block->holds(address) ? block : nullptr;
  }
  [[nodiscard]] bool contains(std::uintptr_t address) const { return space_.contains(address); }
  template <typename Visit>
  void each_block(Visit visit) const {
    for (auto const& [segment, owned] : segments_) {
      visit(*owned->blocks.front());
    }
  }

 private:
  bool dry_;
  AddressSpace space_;
  std::map<Segment*, std::unique_ptr<Segment>> segments_;
  std::map<Bytes, std::vector<Block*>> cache_;
};

/// Ranges of the caller's memory, by address.
class ForeignBlocks {
 public:
  /// Throws std::invalid_argument when the range overlaps one that is there.
  Block& add(std::uintptr_t begin, Bytes bytes, int device, std::int64_t stream);
  void remove(std::uintptr_t begin) { blocks_.erase(begin); }
  [[nodiscard]] Block* find(std::uintptr_t address) const;
  [[nodiscard]] bool empty() const { return blocks_.empty(); }
  template <typename Visit>
  void each_block(Visit visit) const {
    for (auto const& [begin, block] : blocks_) {
      visit(*block);
    }
  }

 private:
  std::map<std::uintptr_t, std::unique_ptr<Block>> blocks_;
};

}  // namespace noria::sim

/// The memory of one device: which addresses are whose. No clock, no checker.
///
/// Follows the scheme of CUDA's caching allocator as PyTorch documents it (c10/cuda/CUDACachingAllocator.cpp, header
/// comment): sizes are multiples of 512 bytes; requests up to 1 MiB are cut from 2 MiB segments, those below 10 MiB
/// from 20 MiB segments, larger ones have a segment of their own, a multiple of 2 MiB; free blocks are kept per stream,
/// the smallest that fits is taken and split; neighbours that are free join.
#pragma once

#include <noria/bytes.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "sim/runtime/address_space.h"
#include "sim/runtime/block.h"

namespace noria::sim {

class DeviceMemory {
 public:
  /// `dry`: only segments for small requests are backed. `poison`: fresh bytes are poison.
  DeviceMemory(int device, Bytes capacity, bool dry, bool poison);

  /// A cached block that fits, now live, or null. `bytes` is a multiple of kBlockAlignment; `key` the stream's id.
  Block* take_cached(Bytes bytes, std::int64_t key);
  /// A block from a new segment, which takes at most `room` bytes; null when that does not suffice.
  Block* take_fresh(Bytes bytes, std::int64_t key, Bytes room);
  /// Makes a live or deferred block available again, joined with its free neighbours.
  void give(Block& block);
  /// Releases segments that are wholly free; calls `release(block)` for each before. Returns how many.
  template <typename Release>
  std::size_t release_cached(Release release);

  /// The block, live or not, that holds the address, or null.
  [[nodiscard]] Block* find(std::uintptr_t address) const {
    Segment* const segment = space_.contains(address) ? space_.owner(address) : nullptr;
    Block* const block = segment == nullptr ? nullptr : segment->at(address);
    return block != nullptr && block->holds(address) ? block : nullptr;
  }
  [[nodiscard]] bool contains(std::uintptr_t address) const { return space_.contains(address); }
  [[nodiscard]] bool was_taken(std::uintptr_t address) const { return space_.was_taken(address); }
  [[nodiscard]] Bytes capacity() const { return capacity_; }
  [[nodiscard]] Bytes reserved() const { return reserved_; }
  /// Every block, in no particular order.
  template <typename Visit>
  void each_block(Visit visit) const {
    for (auto const& segment : segments_) {
      for (auto const& block : segment->blocks) {
        visit(*block);
      }
    }
  }

 private:
  /// Size and address, so that the smallest fit comes first and ties are settled the same way in every run.
  using FreeBlocks = std::map<std::pair<Bytes, std::uintptr_t>, Block*>;

  FreeBlocks& pool(bool small, std::int64_t key) { return pools_[{small, key}]; }
  void split_off(Block& block, Bytes bytes);
  void release(Segment& segment);

  int device_;
  Bytes capacity_;
  bool dry_;
  bool poison_;
  Bytes reserved_ = 0;
  AddressSpace space_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::map<std::pair<bool, std::int64_t>, FreeBlocks> pools_;
};

template <typename Release>
std::size_t DeviceMemory::release_cached(Release release_block) {
  std::vector<Segment*> unused;
  for (auto const& segment : segments_) {
    if (segment->blocks.size() == 1 && segment->blocks.front()->state == BlockState::kCached) {
      unused.push_back(segment.get());
    }
  }
  for (Segment* segment : unused) {
    release_block(*segment->blocks.front());
    release(*segment);
  }
  return unused.size();
}

}  // namespace noria::sim

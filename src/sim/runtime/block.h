/// A piece of simulated memory as one owner holds it, and the segment it is cut from.
#pragma once

#include <noria/bytes.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/runtime/access_map.h"
#include "sim/runtime/clock.h"
#include "sim/runtime/copy.h"
#include "sim/runtime/vector_clock.h"

namespace noria::sim {

enum class BlockState {
  kLive,
  kDeferred,  ///< given back, but streams noted for it have not passed yet
  kCached,    ///< given back and free for reuse
};

/// Work of a stream that uses a block beyond the order of the block's own stream.
struct BlockUse {
  ActorId actor = 0;
  VectorClock known;
  Nanoseconds done = 0;
};

struct Segment;

struct Block {
  std::uintptr_t begin = 0;
  Bytes bytes = 0;  ///< the piece's size
  Bytes asked = 0;  ///< what its owner asked for, <= bytes
  int device = 0;   ///< -1: pinned host memory
  std::int64_t stream = 0;
  BlockState state = BlockState::kLive;
  bool real = true;       ///< the bytes exist
  bool poisoned = false;  ///< all of it is poison since it was last given back
  Segment* segment = nullptr;
  AccessMap accesses;
  std::vector<std::shared_ptr<PendingCopy>> pending;  ///< copies from or to it; landed ones are dropped when seen
  std::vector<ActorId> users;                         ///< record_stream()
  std::vector<BlockUse> uses;                         ///< record_pinned_use(), and users at the time of free()

  [[nodiscard]] std::uintptr_t end() const { return begin + bytes; }
  [[nodiscard]] bool holds(std::uintptr_t address) const { return address - begin < bytes; }

  /// Makes this block end at `boundary`; the result holds the rest, with its share of the history.
  std::unique_ptr<Block> split(std::uintptr_t boundary);
  /// Takes in the neighbour that begins where this block ends.
  void absorb(Block& next);
  /// Forgets landed copies; true when none is left.
  bool drop_landed();
};

/// Memory taken from the system in one piece.
struct Segment {
  std::uintptr_t begin = 0;
  Bytes bytes = 0;
  bool small = false;
  std::int64_t key = 0;                        ///< the stream whose requests it serves
  std::vector<std::uint32_t> begins;           ///< of the blocks, in units of kBlockAlignment from `begin`; sorted
  std::vector<std::unique_ptr<Block>> blocks;  ///< in the same order; together they fill the segment

  [[nodiscard]] std::size_t index_of(std::uintptr_t address) const;
  [[nodiscard]] Block* at(std::uintptr_t address) const { return blocks[index_of(address)].get(); }
  void insert(std::size_t index, std::unique_ptr<Block> block);
  void erase(std::size_t index);
};

}  // namespace noria::sim

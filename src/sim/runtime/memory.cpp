#include "sim/runtime/memory.h"

#include <algorithm>

#include "sim/runtime/runtime.h"

namespace noria::sim {
namespace {

using namespace noria::literals;

constexpr Bytes kSmallSegment = 2_MiB;
constexpr Bytes kLargeSegment = 20_MiB;
constexpr Bytes kOwnSegmentFrom = 10_MiB;
static_assert(AddressSpace::kGranule == kSmallSegment);

// A device remaps physical pages, so its addresses do not run out by fragmentation; ours must not either.
constexpr Bytes kAddressesPerByte = 8;

Bytes segment_bytes(Bytes bytes) {
  if (bytes <= kSmallBlock) {
    return kSmallSegment;
  }
  return bytes < kOwnSegmentFrom ? kLargeSegment : align_up(bytes, AddressSpace::kGranule);
}

bool worth_splitting(Bytes rest, bool small) { return small ? rest >= kBlockAlignment : rest > kSmallBlock; }

}  // namespace

DeviceMemory::DeviceMemory(int device, Bytes capacity, bool dry, bool poison)
    : device_(device),
      capacity_(capacity),
      dry_(dry),
      poison_(poison),
      space_(std::max(capacity, Bytes{1_GiB}) * kAddressesPerByte) {}

Block* DeviceMemory::take_cached(Bytes bytes, std::int64_t key) {
  FreeBlocks& free = pool(bytes <= kSmallBlock, key);
  auto const found = free.lower_bound({bytes, 0});
  if (found == free.end()) {
    return nullptr;
  }
  Block& block = *found->second;
  free.erase(found);
  block.state = BlockState::kLive;
  split_off(block, bytes);
  return &block;
}

Block* DeviceMemory::take_fresh(Bytes bytes, std::int64_t key, Bytes room) {
  Bytes size = segment_bytes(bytes);
  if (size > room) {
    size = align_up(bytes, AddressSpace::kGranule);
  }
  if (size > room) {
    size = bytes;
  }
  if (size > room) {
    return nullptr;
  }
  auto segment = std::make_unique<Segment>();
  segment->bytes = size;
  segment->small = bytes <= kSmallBlock;
  segment->key = key;
  segment->begin = space_.take(align_up(size, AddressSpace::kGranule), segment.get());
  bool const real = segment->small || !dry_;
  if (real) {
    back_range(segment->begin, align_up(size, AddressSpace::kGranule), poison_ ? Backing::kPoison : Backing::kZeroes);
  }
  auto block = std::make_unique<Block>();
  block->begin = segment->begin;
  block->bytes = size;
  block->device = device_;
  block->stream = key;
  block->real = real;
  block->poisoned = poison_;
  block->segment = segment.get();
  Block& taken = *block;
  segment->insert(0, std::move(block));
  segments_.push_back(std::move(segment));
  reserved_ += size;
  split_off(taken, bytes);
  return &taken;
}

void DeviceMemory::split_off(Block& block, Bytes bytes) {
  Segment& segment = *block.segment;
  if (!worth_splitting(block.bytes - bytes, segment.small)) {
    return;
  }
  auto rest = block.split(block.begin + bytes);
  rest->state = BlockState::kCached;
  pool(segment.small, segment.key).emplace(std::pair{rest->bytes, rest->begin}, rest.get());
  segment.insert(segment.index_of(block.begin) + 1, std::move(rest));
}

void DeviceMemory::give(Block& block) {
  Segment& segment = *block.segment;
  FreeBlocks& free = pool(segment.small, segment.key);
  std::size_t index = segment.index_of(block.begin);
  block.state = BlockState::kCached;
  if (index + 1 < segment.blocks.size()) {
    Block& next = *segment.blocks[index + 1];
    if (next.state == BlockState::kCached) {
      free.erase({next.bytes, next.begin});
      block.absorb(next);
      segment.erase(index + 1);
    }
  }
  Block* merged = &block;
  if (index > 0) {
    Block& previous = *segment.blocks[index - 1];
    if (previous.state == BlockState::kCached) {
      free.erase({previous.bytes, previous.begin});
      previous.absorb(block);
      segment.erase(index);
      merged = &previous;
    }
  }
  free.emplace(std::pair{merged->bytes, merged->begin}, merged);
}

void DeviceMemory::release(Segment& segment) {
  Block const& block = *segment.blocks.front();
  pool(segment.small, segment.key).erase({block.bytes, block.begin});
  if (block.real) {
    // With poison, a stale pointer reads NaN rather than crashing the process.
    back_range(segment.begin, align_up(segment.bytes, AddressSpace::kGranule),
               poison_ ? Backing::kPoison : Backing::kNothing);
  }
  space_.give(segment.begin, align_up(segment.bytes, AddressSpace::kGranule));
  reserved_ -= segment.bytes;
  std::erase_if(segments_, [&segment](auto const& owned) { return owned.get() == &segment; });
}

}  // namespace noria::sim

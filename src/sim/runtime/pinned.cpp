#include "sim/runtime/pinned.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <stdexcept>

#include "sim/runtime/runtime.h"

namespace noria::sim {
namespace {

using namespace noria::literals;

constexpr Bytes kAddresses = 8_GiB << 10U;

}  // namespace

PinnedMemory::PinnedMemory(bool dry) : dry_(dry), space_(kAddresses) {}

Bytes PinnedMemory::rounded(Bytes bytes) { return std::bit_ceil(std::max(bytes, Bytes{4_KiB})); }

Block* PinnedMemory::take_cached(Bytes bytes) {
  auto const found = cache_.find(rounded(bytes));
  if (found == cache_.end() || found->second.empty()) {
    return nullptr;
  }
  Block* const block = found->second.back();
  found->second.pop_back();
  block->state = BlockState::kLive;
  return block;
}

Block& PinnedMemory::take_fresh(Bytes bytes) {
  auto segment = std::make_unique<Segment>();
  segment->bytes = align_up(rounded(bytes), AddressSpace::kGranule);
  segment->begin = space_.take(segment->bytes, segment.get());
  auto block = std::make_unique<Block>();
  block->begin = segment->begin;
  block->bytes = rounded(bytes);
  block->device = -1;
  block->segment = segment.get();
  block->real = !dry_ || block->bytes <= kSmallBlock;
  // Host code may write what it likes, so there is memory behind a dry run's large blocks too, once they are written.
  back_range(block->begin, block->bytes, Backing::kZeroes);
  Block& taken = *block;
  segment->insert(0, std::move(block));
  Segment* const key = segment.get();
  segments_.emplace(key, std::move(segment));
  return taken;
}

void PinnedMemory::give(Block& block) {
  block.state = BlockState::kCached;
  cache_[block.bytes].push_back(&block);
}

Bytes PinnedMemory::release_cached() {
  Bytes released = 0;
  for (auto const& [bytes, blocks] : cache_) {
    for (Block* block : blocks) {
      released += block->bytes;
      Segment* const segment = block->segment;
      back_range(segment->begin, segment->bytes, Backing::kNothing);
      space_.give(segment->begin, segment->bytes);
      segments_.erase(segment);
    }
  }
  cache_.clear();
  return released;
}

Block& ForeignBlocks::add(std::uintptr_t begin, Bytes bytes, int device, std::int64_t stream) {
  auto const next = blocks_.lower_bound(begin);
  bool const overlaps = (next != blocks_.end() && next->first < begin + bytes) ||
                        (next != blocks_.begin() && std::prev(next)->second->end() > begin);
  if (overlaps) {
    throw std::invalid_argument(fmt::format(
        "the range [{:#x}, {:#x}) overlaps one that is registered or adopted already", begin, begin + bytes));
  }
  auto block = std::make_unique<Block>();
  block->begin = begin;
  block->bytes = bytes;
  block->asked = bytes;
  block->device = device;
  block->stream = stream;
  return *blocks_.emplace_hint(next, begin, std::move(block))->second;
}

Block* ForeignBlocks::find(std::uintptr_t address) const {
  auto const next = blocks_.upper_bound(address);
  if (next == blocks_.begin()) {
    return nullptr;
  }
  Block* const block = std::prev(next)->second.get();
  return block->holds(address) ? block : nullptr;
}

}  // namespace noria::sim

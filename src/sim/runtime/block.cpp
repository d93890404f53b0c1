#include "sim/runtime/block.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "sim/runtime/runtime.h"

namespace noria::sim {

std::unique_ptr<Block> Block::split(std::uintptr_t boundary) {
  auto rest = std::make_unique<Block>();
  rest->begin = boundary;
  rest->bytes = end() - boundary;
  rest->device = device;
  rest->stream = stream;
  rest->state = state;
  rest->real = real;
  rest->poisoned = poisoned;
  rest->segment = segment;
  rest->accesses = accesses.split(boundary);
  bytes = boundary - begin;
  for (auto const& copy : pending) {
    if (copy->writes(rest->begin, rest->end()) || copy->reads(rest->begin, rest->end())) {
      rest->pending.push_back(copy);
    }
  }
  std::erase_if(pending,
                [this](auto const& copy) { return !copy->writes(begin, end()) && !copy->reads(begin, end()); });
  return rest;
}

void Block::absorb(Block& next) {
  bytes += next.bytes;
  poisoned = poisoned && next.poisoned;
  accesses.append(std::move(next.accesses));
  for (auto& copy : next.pending) {
    if (std::ranges::find(pending, copy) == pending.end()) {
      pending.push_back(std::move(copy));
    }
  }
}

bool Block::drop_landed() {
  std::erase_if(pending, [](auto const& copy) { return copy->landed; });
  return pending.empty();
}

std::size_t Segment::index_of(std::uintptr_t address) const {
  auto const unit = static_cast<std::uint32_t>((address - begin) / kBlockAlignment);
  return static_cast<std::size_t>(std::ranges::upper_bound(begins, unit) - begins.begin()) - 1;
}

void Segment::insert(std::size_t index, std::unique_ptr<Block> block) {
  auto const unit = static_cast<std::uint32_t>((block->begin - begin) / kBlockAlignment);
  begins.insert(begins.begin() + static_cast<std::ptrdiff_t>(index), unit);
  blocks.insert(blocks.begin() + static_cast<std::ptrdiff_t>(index), std::move(block));
}

void Segment::erase(std::size_t index) {
  begins.erase(begins.begin() + static_cast<std::ptrdiff_t>(index));
  blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(index));
}

}  // namespace noria::sim

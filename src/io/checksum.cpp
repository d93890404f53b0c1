#include "io/checksum.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <new>
#include <stdexcept>
#include <utility>

namespace noria {
namespace {

Checksum from_xxh(XXH128_hash_t hash) { return {.high = hash.high64, .low = hash.low64}; }

std::uint64_t from_hex_half(std::string_view text) {
  std::uint64_t value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw std::invalid_argument("not a checksum");
  }
  return value;
}

}  // namespace

std::string Checksum::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Checksum Checksum::from_hex(std::string_view text) {
  if (text.size() != 32 || text.find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    throw std::invalid_argument("not a checksum");
  }
  return {.high = from_hex_half(text.substr(0, 16)), .low = from_hex_half(text.substr(16))};
}

Checksum checksum(std::span<std::byte const> bytes) { return from_xxh(XXH3_128bits(bytes.data(), bytes.size())); }

struct ChunkedChecksum::State {
  State() : hash(XXH3_createState()) {
    if (hash == nullptr) {
      throw std::bad_alloc();
    }
    XXH3_128bits_reset(hash);
  }
  ~State() { XXH3_freeState(hash); }
  State(State const&) = delete;
  State& operator=(State const&) = delete;
  XXH3_state_t* hash;
};

ChunkedChecksum::ChunkedChecksum(Bytes chunk_bytes) : state_(std::make_unique<State>()), chunk_bytes_(chunk_bytes) {}

ChunkedChecksum::~ChunkedChecksum() = default;

void ChunkedChecksum::update(std::span<std::byte const> bytes) {
  while (!bytes.empty()) {
    auto const part = bytes.first(std::min<Bytes>(bytes.size(), chunk_bytes_ - in_chunk_));
    XXH3_128bits_update(state_->hash, part.data(), part.size());
    in_chunk_ += part.size();
    bytes = bytes.subspan(part.size());
    if (in_chunk_ == chunk_bytes_) {
      end_chunk();
    }
  }
}

void ChunkedChecksum::end_chunk() {
  done_.push_back(from_xxh(XXH3_128bits_digest(state_->hash)));
  XXH3_128bits_reset(state_->hash);
  in_chunk_ = 0;
}

std::vector<Checksum> ChunkedChecksum::finish() {
  if (in_chunk_ != 0) {
    end_chunk();
  }
  return std::exchange(done_, {});
}

}  // namespace noria

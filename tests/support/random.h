/// Seeded numbers for property tests; print the seed with every expectation.
#pragma once

#include <cstdint>
#include <random>

namespace noria::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  /// Uniform in [0, bound).
  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(engine_() % bound); }
  bool one_in(std::uint32_t n) { return below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace noria::test

/// For tests of the order checker: leaves out one of the engine's own waits. Compiled away in release builds.
#pragma once

#include <atomic>
#include <cstdint>

namespace noria {

/// What may be left out. Each is a wait without which some schedule reads or overwrites bytes too early, kWriteBack
/// excepted: without it modified weights are lost.
enum class Ordering : std::uint32_t {
  kReady = 1U << 0U,                ///< the compute stream waits for a load
  kUsesBeforeLoad = 1U << 1U,       ///< a load waits for the uses of what it overwrites
  kWriteBackBeforeLoad = 1U << 2U,  ///< a load waits for the write-back of what it overwrites, and of what it reads
  kUsesBeforeWriteBack = 1U << 3U,  ///< a write-back waits for the uses that wrote
  kArenaBeforeLoad = 1U << 4U,      ///< the first load waits for who had the arena's memory before
  kSettle = 1U << 5U,               ///< the host waits before residents are copied back or overwritten
  kWriteBack = 1U << 6U,            ///< a modified page is written back at all
};

#if defined(NORIA_DEBUG_ASSERTIONS)
std::atomic<std::uint32_t>& omitted_orderings();
inline bool keeps(Ordering ordering) {
  return (omitted_orderings().load(std::memory_order_relaxed) & static_cast<std::uint32_t>(ordering)) == 0;
}
#else
constexpr bool keeps(Ordering /*ordering*/) { return true; }
#endif

}  // namespace noria

/// What the order checker reports.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace noria::sim {

/// The stream number of an access made by host code.
inline constexpr std::int64_t kHostStream = -1;

/// One side of a race.
struct Access {
  std::string op;           ///< operator or copy by name; "host write" and the like for host code
  std::int64_t stream = 0;  ///< stream of the device that ran it, or kHostStream
  bool write = false;
  int device = 0;  ///< device of the stream; -1 for host code
};

/// Two accesses to the same bytes, at least one a write, that nothing puts in order. `first` was issued first.
struct Race {
  Access first;
  Access second;
  int device = 0;            ///< where the bytes live; -1: pinned host memory
  std::uintptr_t begin = 0;  ///< the bytes in conflict, [begin, end)
  std::uintptr_t end = 0;
  std::string missing_wait;  ///< the wait that would put them in order, as a sentence
};

/// One paragraph: both operations, streams, range and the missing wait.
std::string describe(Race const& race);

/// A fault that one operation shows alone.
enum class FindingKind {
  kUseAfterFree,        ///< an operation on bytes that no live block holds any more
  kOutOfBounds,         ///< an operation that begins in a live block and ends outside it
  kUnknownMemory,       ///< an operation on addresses of a device that it never handed out
  kDoubleFree,          ///< a block given back twice
  kInvalidFree,         ///< a pointer given back that is no block's begin
  kEventNeverRecorded,  ///< a wait for an event that was never recorded; it counts as done
};

struct Finding {
  FindingKind kind{};
  std::string op;
  std::int64_t stream = 0;
  int device = 0;
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::string text;  ///< what happened and what to do, as a sentence
};

/// "use-after-free", "out-of-bounds", "unknown-memory", "double-free", "invalid-free", "event-never-recorded".
std::string_view finding_name(FindingKind kind);

}  // namespace noria::sim

/// Virtual time: integer nanoseconds, moved only by the runtime, never by a wall clock.
#pragma once

#include <cstdint>
#include <vector>

namespace noria::sim {

/// A point in virtual time or a span of it. Time starts at 0 when the runtime is configured or its clocks are reset.
using Nanoseconds = std::int64_t;

/// Rounded to the nearest nanosecond, so that equal figures give equal clocks.
Nanoseconds nanoseconds(double seconds);

/// The time that `bytes` take at `bytes_per_second`.
Nanoseconds transfer_time(std::uint64_t bytes, double bytes_per_second);

constexpr double to_seconds(Nanoseconds time) { return static_cast<double>(time) * 1e-9; }

/// A unit that does one thing at a time, such as a copy engine: jobs of several streams share it without overlapping.
/// A job takes the first gap, not before it is ready, that holds all of it. So one that waits for its stream does not
/// hold up one of another stream that is ready earlier.
class Engine {
 public:
  /// Books `duration` at the earliest time >= `ready` that is free; returns the start.
  Nanoseconds book(Nanoseconds ready, Nanoseconds duration);

  /// Forgets bookings that end at or before `time`; nothing may be booked before it afterwards.
  void forget_before(Nanoseconds time);

  void reset() { busy_.clear(); }

 private:
  struct Busy {
    Nanoseconds begin;
    Nanoseconds end;
  };
  std::vector<Busy> busy_;  ///< sorted, disjoint; neighbours that touch are one
};

}  // namespace noria::sim

#include "sim/runtime/clock.h"

#include <algorithm>
#include <cmath>

namespace noria::sim {

Nanoseconds nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

Nanoseconds transfer_time(std::uint64_t bytes, double bytes_per_second) {
  return std::llround(static_cast<double>(bytes) / bytes_per_second * 1e9);
}

Nanoseconds Engine::book(Nanoseconds ready, Nanoseconds duration) {
  auto next = std::ranges::upper_bound(busy_, ready, {}, &Busy::end);
  Nanoseconds begin = ready;
  while (next != busy_.end() && next->begin < begin + duration) {
    begin = next->end;
    ++next;
  }
  Nanoseconds const end = begin + duration;
  if (duration == 0) {
    return begin;
  }
  bool const joins_previous = next != busy_.begin() && std::prev(next)->end == begin;
  bool const joins_next = next != busy_.end() && next->begin == end;
  if (joins_previous && joins_next) {
    std::prev(next)->end = next->end;
    busy_.erase(next);
  } else if (joins_previous) {
    std::prev(next)->end = end;
  } else if (joins_next) {
    next->begin = begin;
  } else {
    busy_.insert(next, Busy{begin, end});
  }
  return begin;
}

void Engine::forget_before(Nanoseconds time) {
  busy_.erase(busy_.begin(), std::ranges::upper_bound(busy_, time, {}, &Busy::end));
}

}  // namespace noria::sim

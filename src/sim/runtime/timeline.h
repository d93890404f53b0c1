/// The record of a run in virtual time, for traces and plots.
#pragma once

#include <noria/bytes.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/runtime/clock.h"

namespace noria::sim {

enum class SpanKind { kKernel, kCopyH2D, kCopyD2H, kCopyD2D, kCopyPeer, kHostSync };

/// "kernel", "h2d", "d2h", "d2d", "peer", "sync".
std::string_view span_kind_name(SpanKind kind);

struct Span {
  std::string name;
  SpanKind kind{};
  int device = 0;
  std::int64_t stream = 0;  ///< kHostStream for kHostSync
  int engine = -1;          ///< copy engine of the device that did it; -1: none
  Nanoseconds begin = 0;
  Nanoseconds end = 0;
  Bytes bytes = 0;  ///< of copies
};

}  // namespace noria::sim

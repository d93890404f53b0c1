#include "sim/runtime/timeline.h"

namespace noria::sim {

std::string_view span_kind_name(SpanKind kind) {
  switch (kind) {
    case SpanKind::kKernel:
      return "kernel";
    case SpanKind::kCopyH2D:
      return "h2d";
    case SpanKind::kCopyD2H:
      return "d2h";
    case SpanKind::kCopyD2D:
      return "d2d";
    case SpanKind::kCopyPeer:
      return "peer";
    case SpanKind::kHostSync:
      return "sync";
  }
  return "";
}

}  // namespace noria::sim

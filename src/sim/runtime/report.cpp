#include "sim/runtime/report.h"

#include <fmt/format.h>

namespace noria::sim {
namespace {

std::string place(Access const& access) {
  return access.stream == kHostStream ? std::string("the host")
                                      : fmt::format("stream {} of device {}", access.stream, access.device);
}

}  // namespace

std::string describe(Race const& race) {
  std::string const where = race.device < 0 ? "pinned host memory" : fmt::format("memory of device {}", race.device);
  return fmt::format("race on {} bytes of {} [{:#x}, {:#x}): '{}' ({}, {}) and then '{}' ({}, {}) are not ordered. {}",
                     race.end - race.begin, where, race.begin, race.end, race.first.op,
                     race.first.write ? "writes" : "reads", place(race.first), race.second.op,
                     race.second.write ? "writes" : "reads", place(race.second), race.missing_wait);
}

std::string_view finding_name(FindingKind kind) {
  switch (kind) {
    case FindingKind::kUseAfterFree:
      return "use-after-free";
    case FindingKind::kOutOfBounds:
      return "out-of-bounds";
    case FindingKind::kUnknownMemory:
      return "unknown-memory";
    case FindingKind::kDoubleFree:
      return "double-free";
    case FindingKind::kInvalidFree:
      return "invalid-free";
    case FindingKind::kEventNeverRecorded:
      return "event-never-recorded";
  }
  return "";
}

}  // namespace noria::sim

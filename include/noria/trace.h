/// Timelines of loads and uses.
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace noria {

/// One load, write-back or use. Seconds since the trace began.
struct TraceSlice {
  std::string name;  ///< of the group
  std::string row;   ///< "copy in", "copy out", "compute"
  double begin_seconds = 0.0;
  double end_seconds = 0.0;
};

/// Writes slices as Chrome-trace JSON, which Perfetto opens: one row for each kind of work. Times in the file are
/// microseconds. Throws StorageError when it cannot be written.
void write_chrome_trace(std::filesystem::path const& path, std::span<TraceSlice const> slices);

}  // namespace noria

#include <noria/error.h>
#include <noria/trace.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace noria {

void write_chrome_trace(std::filesystem::path const& path, std::span<TraceSlice const> slices) {
  constexpr double kMicroseconds = 1e6;
  std::map<std::string, int> rows;
  for (TraceSlice const& slice : slices) {
    rows.try_emplace(slice.row, 0);
  }
  auto events = nlohmann::json::array();
  int next = 0;
  for (auto& [row, number] : rows) {
    number = next++;
    events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", 1}, {"tid", number}, {"args", {{"name", row}}}});
  }
  for (TraceSlice const& slice : slices) {
    events.push_back({{"name", slice.name},
                      {"cat", slice.row},
                      {"ph", "X"},
                      {"pid", 1},
                      {"tid", rows.at(slice.row)},
                      {"ts", slice.begin_seconds * kMicroseconds},
                      {"dur", (slice.end_seconds - slice.begin_seconds) * kMicroseconds}});
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  nlohmann::json const trace{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
  file << trace.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (!file.flush()) {
    int const error = errno;
    throw StorageError("cannot write the trace " + path.string() + ": " + std::strerror(error), path.string(), error);
  }
}

}  // namespace noria

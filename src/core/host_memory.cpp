#include "core/host_memory.h"

#include <fmt/format.h>
#include <noria/error.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

namespace noria {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read_text(fs::path const& path) {
  std::ifstream const file(path);
  if (!file) {
    return std::nullopt;
  }
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

std::optional<Bytes> parse_number(std::string_view text) {
  auto const begin = text.find_first_of("0123456789");
  if (begin == std::string_view::npos) {
    return std::nullopt;  // "max"
  }
  Bytes value = 0;
  auto const parsed = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return parsed.ec == std::errc{} ? std::optional(value) : std::nullopt;
}

// The number after `key` at the start of a line: "MemTotal:   123 kB", "inactive_file 123".
std::optional<Bytes> number_after(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; at < text.size();) {
    auto const end = std::min(text.find('\n', at), text.size());
    auto const line = text.substr(at, end - at);
    if (line.starts_with(key)) {
      return parse_number(line.substr(key.size()));
    }
    at = end + 1;
  }
  return std::nullopt;
}

std::vector<std::string> split(std::string const& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    parts.push_back(part);
  }
  return parts;
}

bool lists_memory(std::string const& options) {
  auto const names = split(options, ',');
  return std::ranges::find(names, "memory") != names.end();
}

// Source of the file names: kernel documentation, admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst. In v1 the plain
// keys of memory.stat leave the children out; the total_ ones go with usage_in_bytes, which has them.
struct Interface {
  char const* limit;
  char const* use;
  char const* active_cache;
  char const* inactive_cache;
};
constexpr Interface kV2{"memory.max", "memory.current", "active_file ", "inactive_file "};
constexpr Interface kV1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file ", "total_inactive_file "};

struct Hierarchy {
  Interface interface;
  fs::path mount_point;
  fs::path group;  // of this process, relative to the mount point
};

// This process's group within `mount`, whose own root is `mounted_root` of the hierarchy (differs in containers).
fs::path relative_group(fs::path const& group, fs::path const& mounted_root) {
  auto const relative = group.lexically_relative(mounted_root);
  return relative.empty() || *relative.begin() == ".." ? fs::path() : relative;
}

std::vector<Hierarchy> hierarchies(fs::path const& root) {
  std::optional<std::string> v1_group;
  std::optional<std::string> v2_group;
  for (auto const& line : split(read_text(root / "proc/self/cgroup").value_or(""), '\n')) {
    // "4:memory:/path" or "0::/path"; a path may hold colons.
    auto const first = line.find(':');
    auto const second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    auto const controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) {
      v2_group = line.substr(second + 1);
    } else if (lists_memory(controllers)) {
      v1_group = line.substr(second + 1);
    }
  }
  std::vector<Hierarchy> found;
  for (auto const& line : split(read_text(root / "proc/self/mountinfo").value_or(""), '\n')) {
    // "id parent major:minor root mount-point options ... - type source super-options" (proc(5))
    auto const dash = line.find(" - ");
    if (dash == std::string::npos) {
      continue;
    }
    auto const front = split(line.substr(0, dash), ' ');
    auto const back = split(line.substr(dash + 3), ' ');
    if (front.size() < 5 || back.size() < 3) {
      continue;
    }
    auto const mount_point = root / fs::path(front[4]).relative_path();
    if (back[0] == "cgroup2" && v2_group) {
      found.push_back({kV2, mount_point, relative_group(*v2_group, front[3])});
    } else if (back[0] == "cgroup" && v1_group && lists_memory(back[2])) {
      found.push_back({kV1, mount_point, relative_group(*v1_group, front[3])});
    }
  }
  return found;
}

void tighten(HostMemory& memory, Interface const& names, fs::path const& group) {
  auto const limit_text = read_text(group / names.limit);
  auto const limit = limit_text ? parse_number(*limit_text) : std::nullopt;
  auto const use_text = read_text(group / names.use);
  auto const use = use_text ? parse_number(*use_text) : std::nullopt;
  if (!limit || !use) {
    return;  // no limit here, or the root group, which has no such files
  }
  auto const stat = read_text(group / "memory.stat").value_or("");
  auto const cache =
      number_after(stat, names.active_cache).value_or(0) + number_after(stat, names.inactive_cache).value_or(0);
  auto const held = *use - std::min(*use, cache);
  auto const available = *limit - std::min(*limit, held);
  memory.total = std::min(memory.total, *limit);
  if (available < memory.available) {
    memory.available = available;
    memory.limited_by = (group / names.limit).string();
  }
}

#if defined(__linux__)
Bytes status_bytes(std::string_view key) {
  auto const status = read_text("/proc/self/status").value_or("");
  return number_after(status, key).value_or(0) << 10U;
}
#else
Bytes status_bytes(std::string_view) { return 0; }
#endif

// Only used where the kernel does not let its own peak be reset.
struct OwnPeak {
  std::atomic<bool> in_use{false};
  std::atomic<Bytes> bytes{0};
};

OwnPeak& own_peak() {
  static OwnPeak peak;
  return peak;
}

}  // namespace

HostMemory host_memory(fs::path const& root) {
  auto const path = root / "proc/meminfo";
  auto const text = read_text(path);
  NORIA_CHECK(text, StorageError, fmt::format("cannot read {}, which says how much memory is left", path.string()),
              path.string(), errno);
  auto const available = number_after(*text, "MemAvailable:");
  auto const total = number_after(*text, "MemTotal:");
  NORIA_CHECK(available && total, StorageError,
              fmt::format("{} has no MemAvailable or no MemTotal line", path.string()), path.string(), 0);
  HostMemory memory{*available << 10U, *total << 10U, path.string()};
  for (auto const& hierarchy : hierarchies(root)) {
    auto group = hierarchy.mount_point / hierarchy.group;
    tighten(memory, hierarchy.interface, group);
    for (auto below = hierarchy.group; !below.empty() && below != ".";) {
      below = below.parent_path();
      tighten(memory, hierarchy.interface, hierarchy.mount_point / below);
    }
  }
  return memory;
}

Bytes resident_bytes() {
  auto const now = status_bytes("VmRSS:");
  auto& peak = own_peak();
  for (auto seen = peak.bytes.load(); now > seen && !peak.bytes.compare_exchange_weak(seen, now);) {
  }
  return now;
}

Bytes peak_resident_bytes() {
  auto const now = resident_bytes();
  return own_peak().in_use ? own_peak().bytes.load() : std::max(now, status_bytes("VmHWM:"));
}

bool reset_peak_resident_bytes() {
  // "5" resets VmHWM to VmRSS (proc(5), clear_refs).
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  bool const reset = file.good();
  auto& peak = own_peak();
  peak.bytes = status_bytes("VmRSS:");
  peak.in_use = !reset;
  return reset;
}

}  // namespace noria

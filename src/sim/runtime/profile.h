/// What a machine can do, as figures: the price list of the virtual clock.
#pragma once

#include <noria/bytes.h>

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace noria::sim {

/// The arithmetic a kernel does, for its peak rate. Names in profiles are those of PyTorch dtypes.
enum class ComputeType { kFloat64, kFloat32, kTensorFloat32, kFloat16, kBfloat16, kFloat8, kInt8 };
inline constexpr std::size_t kComputeTypes = 7;

/// "float64", "float32", "tfloat32", "float16", "bfloat16", "float8", "int8".
std::string_view compute_type_name(ComputeType type);

/// The other way round; empty for a name that is none of these. "float8_e4m3fn" and its relatives count as "float8".
std::optional<ComputeType> compute_type(std::string_view name);

/// One machine. Rates are per second, times in seconds; each is a field of the same name in profiles.json, where
/// `source` says for each figure from which public document it comes.
struct Profile {
  std::string name;
  std::string title;  ///< as its vendor calls it

  /// Dense peak by type. A type that the machine's sheet does not list has the rate that `fill_missing_rates` gives it.
  std::array<double, kComputeTypes> flops{};
  double memory_bytes_per_second = 0;
  double h2d_bytes_per_second = 0;       ///< pinned host memory to device, achieved
  double d2h_bytes_per_second = 0;       ///< device to pinned host memory, achieved
  double pageable_bytes_per_second = 0;  ///< either way, through the driver's staging buffers
  double peer_bytes_per_second = 0;      ///< between two devices of this kind
  double copy_latency_seconds = 0;       ///< fixed part of a copy, on the engine
  double launch_seconds = 0;             ///< host time to launch a kernel or issue a copy
  double kernel_floor_seconds = 0;       ///< fixed part of a kernel, on the stream
  double host_sync_seconds = 0;          ///< host time of a synchronisation besides the waiting itself
  double event_seconds = 0;              ///< host time to record, wait for or query an event
  double alloc_seconds = 0;              ///< host time of a device allocation or release that no cache serves
  double pin_seconds_per_byte = 0;       ///< host time to page-lock memory
  double disk_bytes_per_second = 0;      ///< sequential reads of the disk a machine like this has
  Bytes capacity_bytes = 0;
  bool unified_memory = false;                ///< host and device share one memory
  std::map<std::string, std::string> source;  ///< figure to public source

  [[nodiscard]] double peak(ComputeType type) const { return flops[static_cast<std::size_t>(type)]; }
};

/// The text of profiles.json as built into this library: an object of profile name to figures.
std::string_view profiles_json();

/// Names of the built-in profiles, in the order of the file.
std::vector<std::string> profile_names();

/// A built-in profile. Throws std::invalid_argument that lists the names.
Profile profile(std::string_view name);

/// A whole profile from a JSON object with the keys of profiles.json; `name` is how it will be called.
/// Throws std::invalid_argument for an unknown key, a missing figure or one that is not positive.
Profile profile_from_json(std::string_view name, std::string_view json_object);

/// `base` with the figures of a JSON object in place of its own; `flops` merges by type.
/// Throws std::invalid_argument for an unknown key, naming those that exist.
Profile with_overrides(Profile base, std::string_view json_object);

/// The profile as a JSON object, the inverse of profile_from_json.
std::string to_json(Profile const& profile);

}  // namespace noria::sim

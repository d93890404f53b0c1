#include "sim/runtime/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace noria::sim {
namespace {

// Ordered, so that profiles are listed as the file has them.
using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, kComputeTypes> kTypeNames = {"float64",  "float32", "tfloat32", "float16",
                                                                    "bfloat16", "float8",  "int8"};

struct Figure {
  std::string_view key;
  double Profile::* field;
};

constexpr std::array kFigures = {
    Figure{"memory_bytes_per_second", &Profile::memory_bytes_per_second},
    Figure{"h2d_bytes_per_second", &Profile::h2d_bytes_per_second},
    Figure{"d2h_bytes_per_second", &Profile::d2h_bytes_per_second},
    Figure{"pageable_bytes_per_second", &Profile::pageable_bytes_per_second},
    Figure{"peer_bytes_per_second", &Profile::peer_bytes_per_second},
    Figure{"copy_latency_seconds", &Profile::copy_latency_seconds},
    Figure{"launch_seconds", &Profile::launch_seconds},
    Figure{"kernel_floor_seconds", &Profile::kernel_floor_seconds},
    Figure{"host_sync_seconds", &Profile::host_sync_seconds},
    Figure{"event_seconds", &Profile::event_seconds},
    Figure{"alloc_seconds", &Profile::alloc_seconds},
    Figure{"pin_seconds_per_byte", &Profile::pin_seconds_per_byte},
    Figure{"disk_bytes_per_second", &Profile::disk_bytes_per_second},
};

/// Rates divide and must be positive; times may be nought.
bool is_rate(std::string_view key) { return key.ends_with("_per_second"); }

double number(std::string_view profile, std::string_view key, Json const& value, bool positive) {
  double const figure = value.is_number() ? value.get<double>() : -1.0;
  if (figure < 0 || (positive && figure == 0)) {
    throw std::invalid_argument(fmt::format("profile '{}': {} must be a {} number, not {}", profile, key,
                                            positive ? "positive" : "non-negative", value.dump()));
  }
  return figure;
}

void read_flops(Profile& profile, Json const& value) {
  if (!value.is_object()) {
    throw std::invalid_argument(
        fmt::format("profile '{}': flops must be an object of type name to rate, not {}", profile.name, value.dump()));
  }
  for (auto const& [name, rate] : value.items()) {
    auto const type = compute_type(name);
    if (!type) {
      throw std::invalid_argument(fmt::format("profile '{}': no arithmetic is called '{}'; there are {}", profile.name,
                                              name, fmt::join(kTypeNames, ", ")));
    }
    profile.flops[static_cast<std::size_t>(*type)] = number(profile.name, name, rate, true);
  }
}

std::string known_keys() {
  std::string keys = "title, flops, capacity_bytes, unified_memory, source";
  for (auto const& figure : kFigures) {
    keys += fmt::format(", {}", figure.key);
  }
  return keys;
}

void read_figure(Profile& profile, std::string_view key, Json const& value) {
  for (auto const& figure : kFigures) {
    if (figure.key == key) {
      profile.*figure.field = number(profile.name, key, value, is_rate(key));
      return;
    }
  }
  throw std::invalid_argument(
      fmt::format("profile '{}': there is no figure '{}'; there are {}", profile.name, key, known_keys()));
}

void read_source(Profile& profile, Json const& value) {
  if (value.is_string()) {
    profile.source["all"] = value.get<std::string>();
    return;
  }
  for (auto const& [figure, text] : value.items()) {
    profile.source[figure] = text.get<std::string>();
  }
}

void read_object(Profile& profile, Json const& object) {
  for (auto const& [key, value] : object.items()) {
    if (key == "flops") {
      read_flops(profile, value);
    } else if (key == "capacity_bytes") {
      profile.capacity_bytes = static_cast<Bytes>(number(profile.name, key, value, true));
    } else if (key == "title") {
      profile.title = value.get<std::string>();
    } else if (key == "unified_memory") {
      profile.unified_memory = value.get<bool>();
    } else if (key == "source") {
      read_source(profile, value);
    } else {
      read_figure(profile, key, value);
    }
  }
}

/// A type without a rate of its own runs at that of the type it is emulated in, if any has one.
void fill_missing_rates(Profile& profile) {
  constexpr std::array<std::pair<ComputeType, ComputeType>, 6> kFallbacks = {{
      {ComputeType::kTensorFloat32, ComputeType::kFloat32},
      {ComputeType::kFloat16, ComputeType::kFloat32},
      {ComputeType::kBfloat16, ComputeType::kFloat32},
      {ComputeType::kFloat8, ComputeType::kFloat16},
      {ComputeType::kInt8, ComputeType::kFloat16},
      {ComputeType::kFloat64, ComputeType::kFloat32},
  }};
  // Double precision without units for it is emulated; 1/32 of single is what the slowest sheets that list it say.
  constexpr double kEmulatedFloat64 = 1.0 / 32;
  for (auto const& [type, fallback] : kFallbacks) {
    double& rate = profile.flops[static_cast<std::size_t>(type)];
    if (rate == 0) {
      rate = profile.peak(fallback) * (type == ComputeType::kFloat64 ? kEmulatedFloat64 : 1.0);
    }
  }
}

Json parse(std::string_view name, std::string_view text) {
  Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    throw std::invalid_argument(
        fmt::format("profile '{}': expected a JSON object of figures, got {}", name, text.substr(0, 80)));
  }
  return object;
}

Profile from_object(std::string_view name, Json const& object) {
  Profile profile;
  profile.name = name;
  profile.title = name;
  try {
    read_object(profile, object);
  } catch (Json::exception const& error) {
    throw std::invalid_argument(fmt::format("profile '{}': {}", name, error.what()));
  }
  if (profile.peer_bytes_per_second == 0) {
    profile.peer_bytes_per_second = std::min(profile.h2d_bytes_per_second, profile.d2h_bytes_per_second);
  }
  for (auto const& figure : kFigures) {
    if (is_rate(figure.key) && profile.*figure.field == 0) {
      throw std::invalid_argument(fmt::format("profile '{}' lacks {}", name, figure.key));
    }
  }
  if (profile.capacity_bytes == 0 || profile.peak(ComputeType::kFloat32) == 0) {
    throw std::invalid_argument(fmt::format("profile '{}' lacks capacity_bytes or flops.float32", name));
  }
  fill_missing_rates(profile);
  return profile;
}

Json const& built_in() {
  static Json const kObject = Json::parse(profiles_json());
  return kObject;
}

}  // namespace

std::string_view compute_type_name(ComputeType type) { return kTypeNames[static_cast<std::size_t>(type)]; }

std::optional<ComputeType> compute_type(std::string_view name) {
  for (std::size_t i = 0; i < kTypeNames.size(); ++i) {
    if (kTypeNames[i] == name) {
      return static_cast<ComputeType>(i);
    }
  }
  if (name.starts_with("float8_")) {
    return ComputeType::kFloat8;
  }
  return std::nullopt;
}

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  for (auto const& [name, figures] : built_in().items()) {
    names.push_back(name);
  }
  return names;
}

Profile profile(std::string_view name) {
  auto const found = built_in().find(std::string(name));
  if (found == built_in().end()) {
    throw std::invalid_argument(
        fmt::format("there is no machine profile '{}'; there are {}", name, fmt::join(profile_names(), ", ")));
  }
  return from_object(name, *found);
}

Profile profile_from_json(std::string_view name, std::string_view json_object) {
  return from_object(name, parse(name, json_object));
}

Profile with_overrides(Profile base, std::string_view json_object) {
  Json const object = parse(base.name, json_object);
  try {
    read_object(base, object);
  } catch (Json::exception const& error) {
    throw std::invalid_argument(fmt::format("profile '{}': {}", base.name, error.what()));
  }
  for (auto const& [key, value] : object.items()) {
    if (key != "source") {
      base.source[key] = "set by the user";
    }
  }
  return base;
}

std::string to_json(Profile const& profile) {
  Json object;
  object["title"] = profile.title;
  for (std::size_t i = 0; i < kComputeTypes; ++i) {
    object["flops"][std::string(kTypeNames[i])] = profile.flops[i];
  }
  for (auto const& figure : kFigures) {
    object[std::string(figure.key)] = profile.*figure.field;
  }
  object["capacity_bytes"] = profile.capacity_bytes;
  object["unified_memory"] = profile.unified_memory;
  object["source"] = profile.source;
  return object.dump();
}

}  // namespace noria::sim

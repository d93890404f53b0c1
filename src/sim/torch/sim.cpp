#include <noria/error.h>
#include <noria/sim.h>

#include <stdexcept>
#include <utility>

#include "sim/torch/backend.h"

namespace noria::sim {
namespace {

CheckerMode parse_checker(std::string const& name) {
  auto const mode = checker_mode(name);
  NORIA_CHECK(mode.has_value(), std::invalid_argument,
              "checker must be 'raise', 'record' or 'off', not '" + name + "'");
  return *mode;
}

Profile parse_profile(Options const& options) {
  Profile base = options.profile_json.empty() ? profile(options.profile)
                                              : profile_from_json(options.profile, options.profile_json);
  return options.overrides_json.empty() ? base : with_overrides(std::move(base), options.overrides_json);
}

}  // namespace

void enable(Options const& options) {
  NORIA_CHECK(options.devices >= 1, std::invalid_argument,
              "devices must be at least 1, not " + std::to_string(options.devices));
  NORIA_CHECK(options.copy_engines == 1 || options.copy_engines == 2, std::invalid_argument,
              "copy_engines must be 1 or 2, not " + std::to_string(options.copy_engines));
  Config config;
  config.devices.assign(static_cast<std::size_t>(options.devices),
                        {.profile = parse_profile(options), .memory_bytes = options.memory_bytes});
  config.checker = parse_checker(options.checker);
  config.dry = options.dry;
  config.streams = options.streams;
  config.pinned_memory = options.pinned_memory;
  config.caching_allocator = options.caching_allocator;
  config.copy_engines = options.copy_engines;
  simtorch::enable(std::move(config));
}

double clock(int device) { return to_seconds(simtorch::runtime().device_clock(device)); }

void reset_clock() { simtorch::runtime().reset_clocks(); }

}  // namespace noria::sim

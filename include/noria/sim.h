/// The simulated accelerator for C++ programs: links libnoria_sim, and nothing happens before enable().
#pragma once

#include <noria/bytes.h>

#include <string>

namespace noria::sim {

/// How the device type "sim" is configured; the fields are those of Python's noria.sim.enable().
struct Options {
  std::string profile = "rtx4090";
  /// Figures of a machine of your own as a JSON object, in place of a built-in profile; `profile` then names it.
  std::string profile_json = {};
  /// Figures to replace, as a JSON object.
  std::string overrides_json = {};
  int devices = 1;
  Bytes memory_bytes = 0;         ///< capacity in place of the profile's; 0: the profile's
  bool dry = false;               ///< shapes, accounting, order and time only
  std::string checker = "raise";  ///< "raise", "record" or "off"
  bool streams = true;
  bool pinned_memory = true;
  bool caching_allocator = true;
  int copy_engines = 2;
};

/// Makes torch::Device("sim") exist in this process, or configures it anew. Call it before the first backward.
/// Throws noria::Error while a simulated tensor is alive or when the process has another PrivateUse1 backend, and
/// std::invalid_argument for an option that makes no sense.
void enable(Options const& options = {});

/// Virtual seconds at which everything issued to a device is done, the host included.
double clock(int device = 0);

/// Sets all clocks to 0, after letting outstanding work finish.
void reset_clock();

}  // namespace noria::sim

/// What an engine holds and has done.
#pragma once

#include <noria/bytes.h>

#include <cstdint>
#include <string>
#include <vector>

namespace noria {

/// One group of weights that move together.
struct GroupStatus {
  std::string name;
  Bytes bytes = 0;
  std::string tier;  ///< "pinned", "pageable" or "disk": where its home is
  bool resident = false;
  bool dirty = false;  ///< modified on the device, and not yet written to its home
  std::uint64_t loads = 0;
  std::uint64_t stalls = 0;
  double stall_seconds = 0.0;
};

/// Counts since offloading began.
struct Status {
  std::string device;
  Bytes budget_bytes = 0;         ///< weights allowed on the device at once
  Bytes weights_bytes = 0;        ///< all managed weights
  Bytes resident_bytes = 0;       ///< weights that stay on the device
  Bytes streamed_bytes = 0;       ///< weights that come and go
  Bytes device_bytes = 0;         ///< device memory taken now
  Bytes peak_device_bytes = 0;    ///< the most ever taken
  Bytes host_pinned_bytes = 0;    ///< page-locked host memory booked
  Bytes host_pageable_bytes = 0;  ///< other host memory that holds weights
  Bytes disk_bytes = 0;           ///< weights whose home is a file
  std::uint64_t passes = 0;       ///< calls of a root module that a hook saw; 0 where there are no hooks
  Bytes bytes_in = 0;             ///< copied to the device
  Bytes bytes_out = 0;            ///< modified weights copied back
  std::uint64_t loads = 0;        ///< copies to the device, one per group and load
  std::uint64_t stalls = 0;       ///< times that the device waited for a load
  double stall_seconds = 0.0;
  std::uint64_t host_syncs = 0;       ///< times that the engine made the host wait for the device
  std::uint64_t net_faults = 0;       ///< weights that an operator needed and nothing had brought
  std::uint64_t order_surprises = 0;  ///< uses that differed from the learned order
  std::vector<GroupStatus> groups;
};

}  // namespace noria

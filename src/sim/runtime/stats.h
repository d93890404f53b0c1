/// Counters of a simulated device and of the host side.
#pragma once

#include <noria/bytes.h>

#include <cstdint>

#include "sim/runtime/clock.h"

namespace noria::sim {

/// Counts since the runtime was configured or reset_stats(); amounts are of now.
struct DeviceStats {
  std::uint64_t kernels = 0;
  std::uint64_t copies_h2d = 0;
  std::uint64_t copies_d2h = 0;
  std::uint64_t copies_d2d = 0;  ///< within the device and to its peers
  Bytes bytes_h2d = 0;
  Bytes bytes_d2h = 0;
  Bytes bytes_d2d = 0;
  std::uint64_t pageable_copies = 0;  ///< among the above: from or to pageable memory, so the host was blocked
  std::uint64_t host_syncs = 0;       ///< stream, event and device synchronisations, pageable copies, blocking frees
  std::uint64_t event_records = 0;
  std::uint64_t event_waits = 0;  ///< by streams
  std::uint64_t event_queries = 0;
  Nanoseconds kernel_time = 0;  ///< sum over kernels
  Nanoseconds copy_time = 0;    ///< sum over copies
  Nanoseconds host_wait = 0;    ///< host time spent in synchronisations, waiting

  Bytes allocated = 0;  ///< live blocks, each rounded up to 512 bytes
  Bytes peak_allocated = 0;
  Bytes reserved = 0;  ///< taken from the device: live blocks and the cache
  Bytes peak_reserved = 0;
  std::uint64_t allocations = 0;         ///< allocate() calls that succeeded
  std::uint64_t frees = 0;               ///< blocks given back
  std::uint64_t device_allocations = 0;  ///< those that took memory from the device (cache misses)
  std::uint64_t device_frees = 0;
  std::uint64_t ooms = 0;                ///< allocations that failed
  std::uint64_t allocation_retries = 0;  ///< times that the cache was emptied to make room
  Bytes allocated_total = 0;             ///< sum of all allocations, rounded
  Bytes freed_total = 0;
};

/// The host side, for all devices together.
struct HostStats {
  Bytes pinned_allocated = 0;  ///< live pinned blocks as asked for
  Bytes pinned_booked = 0;     ///< page-locked in all: live blocks and cached ones, rounded up, and registered ranges
  Bytes peak_pinned_booked = 0;
  Bytes registered = 0;  ///< ranges page-locked in place, exact
  std::uint64_t pinned_allocations = 0;
  std::uint64_t pins = 0;  ///< times that memory was page-locked (cache misses and registrations)
  std::uint64_t pin_failures = 0;
};

}  // namespace noria::sim

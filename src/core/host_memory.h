/// What the machine has left for this process, and what this process holds.
#pragma once

#include <noria/bytes.h>

#include <filesystem>
#include <string>

namespace noria {

struct HostMemory {
  Bytes available = 0;     ///< can be taken without swapping and without hitting a limit
  Bytes total = 0;         ///< the machine's memory or the tightest limit on this process, whichever is less
  std::string limited_by;  ///< the file that gave `available`
};

/// The tightest of the kernel's MemAvailable and, for every control group (v1 and v2) from this process's own to the
/// root, limit minus use. Page cache is not use, as it is not for MemAvailable: the kernel gives it up before it
/// refuses memory, and a streamed checkpoint fills a group with it. Throws noria::StorageError when the kernel's files
/// cannot be read. `root` stands in front of /proc and of mount points.
HostMemory host_memory(std::filesystem::path const& root = "/");

/// Bytes of this process in physical memory.
Bytes resident_bytes();

/// Most bytes of this process in physical memory since the last reset_peak_resident_bytes(), else since its start.
Bytes peak_resident_bytes();

/// Starts the peak again from what is resident now. The kernel keeps one peak per process (VmHWM), so this resets it
/// for everyone who reads it. Returns false where the kernel does not allow it; the peak then covers only what was
/// resident whenever one of these functions was called since.
bool reset_peak_resident_bytes();

}  // namespace noria

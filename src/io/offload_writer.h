/// Writes an offload folder so that, whenever the process ends, the folder holds the old weights or the new, whole.
#pragma once

#include <noria/bytes.h>

#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "io/checksum.h"
#include "io/manifest.h"

namespace noria {

/// The name of the manifest in its folder.
inline constexpr char const* kManifestName = "manifest.json";

/// A folder name for a component of any name: letters, digits, '-', '_' and inner dots stay, the rest is written as
/// %XX, so that two components never share a folder.
std::string component_folder(std::string_view component);

/// Excludes other writers of the same folder, in this process or another, as long as it lives.
class FolderLock {
 public:
  /// Makes the folder when it is not there, and waits for the lock. Throws StorageError.
  explicit FolderLock(std::filesystem::path const& folder);

 private:
  Descriptor descriptor_;
};

/// Data goes to a temporary file; publish() makes it last, names it, and only then points the manifest to it. Until
/// then, and when this object dies before, readers see what was there. One writer per folder: hold a FolderLock.
class OffloadWriter {
 public:
  /// Removes what killed writers left behind. Throws StorageError.
  OffloadWriter(std::filesystem::path folder, std::map<std::string, std::string> source);
  ~OffloadWriter();
  OffloadWriter(OffloadWriter const&) = delete;
  OffloadWriter& operator=(OffloadWriter const&) = delete;

  /// Asks the file system for room, so that a full disk is known before the work. Optional.
  void reserve(Bytes bytes);
  /// Appends at the next multiple of `alignment` and answers where. Throws StorageError (ENOSPC: the disk is full).
  Bytes append(std::span<std::byte const> bytes, Bytes alignment = 4096);
  /// Enters a tensor whose bytes were appended.
  void describe(StoredTensor tensor);
  /// Flushes to the disk, publishes, and removes data files that no one reads any more. Call once.
  Manifest publish();

 private:
  void write(std::span<std::byte const> bytes);
  [[noreturn]] void fail(std::string const& what, int error) const;

  std::filesystem::path folder_;
  std::filesystem::path temporary_;
  Descriptor descriptor_;
  Manifest manifest_;
  ChunkedChecksum checksums_;
  Bytes size_ = 0;
};

}  // namespace noria

/// Where the bytes of a group live while they are not on the device.
#pragma once

#include <noria/bytes.h>
#include <noria/device_backend.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/conversion.h"
#include "io/reader.h"

namespace noria {

/// Host memory of one group, page-locked or not. Shared: a state_dict may outlive the engine.
class HostBlock {
 public:
  /// Page-locked for `backend`. Throws as DeviceBackend::allocate_pinned does.
  static std::shared_ptr<HostBlock> pinned(DeviceBackend& backend, Bytes bytes);
  /// Ordinary memory, page-aligned. Throws noria::Error when the system has none left.
  static std::shared_ptr<HostBlock> pageable(Bytes bytes);

  HostBlock(HostBlock const&) = delete;
  HostBlock& operator=(HostBlock const&) = delete;
  ~HostBlock();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] Bytes bytes() const { return bytes_; }
  [[nodiscard]] bool is_pinned() const { return static_cast<bool>(pinned_); }
  [[nodiscard]] Bytes booked_bytes() const;

 private:
  HostBlock() = default;

  PinnedBlock pinned_;
  std::byte* data_ = nullptr;
  Bytes bytes_ = 0;
};

/// A part of a checkpoint file that is a part of a group.
struct FileExtent {
  std::shared_ptr<SourceFile const> file;
  Bytes file_offset = 0;
  Bytes group_offset = 0;
  Bytes bytes = 0;  ///< in the group
  std::optional<Conversion> conversion = std::nullopt;

  [[nodiscard]] Bytes file_bytes() const { return conversion ? conversion->source_bytes(bytes) : bytes; }
  /// Reads it at once. `target` has room for `bytes`. Throws StorageError, IntegrityError.
  void read_exact(std::byte* target) const;
};

/// A part of a group on disk that its files do not hold: a buffer computed at construction.
struct MemoryPart {
  std::shared_ptr<HostBlock> block;
  Bytes group_offset = 0;
};

/// Host memory, or extents of checkpoint files that are never written, with what they lack in memory beside them.
class HostHome {
 public:
  HostHome() = default;
  explicit HostHome(std::shared_ptr<HostBlock> block) : block_(std::move(block)) {}
  HostHome(std::vector<FileExtent> extents, std::vector<MemoryPart> parts);

  /// Null when the home is on disk.
  [[nodiscard]] std::shared_ptr<HostBlock> const& block() const { return block_; }
  [[nodiscard]] bool on_disk() const { return !extents_.empty(); }
  [[nodiscard]] std::span<FileExtent const> extents() const { return extents_; }
  [[nodiscard]] std::span<MemoryPart const> parts() const { return parts_; }
  [[nodiscard]] Bytes disk_bytes() const;
  /// The part of the extents that begins at `group_offset`, which no conversion and no end of an extent cuts.
  [[nodiscard]] FileExtent extent_at(Bytes group_offset, Bytes bytes) const;

  /// Reads the extents to their places in `group`.
  [[nodiscard]] ReadRequest request(std::span<std::byte> group) const;
  /// Writes what the files do not hold to its place in `group`.
  void copy_parts(std::span<std::byte> group) const;

 private:
  std::shared_ptr<HostBlock> block_;
  /// Where an extent stands in the plan of a home that converts: the bytes of its file, one after the other.
  struct Converted {
    Bytes begin = 0;
    Bytes end = 0;
    Bytes group_offset = 0;
    std::optional<Conversion> conversion;
  };

  static void deliver(std::span<Converted const> table, std::byte* group, Bytes place,
                      std::span<std::byte const> bytes);

  std::vector<FileExtent> extents_;
  std::shared_ptr<std::vector<Converted> const> converted_;  // null when the bytes are taken as they are
  std::vector<MemoryPart> parts_;
  std::vector<std::shared_ptr<SourceFile const>> files_;
  std::shared_ptr<ReadPlan const> plan_;
};

}  // namespace noria

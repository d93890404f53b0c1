/// All files of one model, open for streaming.
#pragma once

#include <noria/bytes.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "format/checkpoint_layout.h"
#include "format/safetensors.h"
#include "io/source_file.h"

namespace noria {

/// A tensor and the file that holds it.
struct ShardTensor {
  std::uint32_t file = 0;  ///< counts ShardSet::files(), as ReadPiece::file does
  TensorEntry const* entry = nullptr;
};

/// Every shard is opened once, checked, and kept with the identity it had.
class ShardSet {
 public:
  /// Opens what find_checkpoint() finds. Throws std::invalid_argument when there is nothing, StorageError and
  /// IntegrityError of the files, and IntegrityError (IndexInvalid) when index and shards disagree: a shard that is not
  /// there, a tensor that is not in its shard, a tensor in two.
  static ShardSet open(std::filesystem::path const& path, std::string_view variant = {},
                       SafetensorsLimits const& limits = {});

  /// What a ReadRequest wants.
  [[nodiscard]] std::vector<std::shared_ptr<SourceFile const>> const& files() const noexcept { return files_; }
  /// Sorted by name.
  [[nodiscard]] std::span<ShardTensor const> tensors() const noexcept { return tensors_; }
  /// `entry` is null when there is none of that name.
  [[nodiscard]] ShardTensor find(std::string_view name) const noexcept;
  /// As SafetensorsFile::at.
  [[nodiscard]] ShardTensor at(std::string_view name) const;
  /// Of all tensors together.
  [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }
  /// The metadata of one shard.
  [[nodiscard]] SafetensorsHeader const& header(std::uint32_t file) const { return *headers_[file]; }
  /// Throws IntegrityError when any file is not what it was.
  void check_unchanged() const;

 private:
  void add(std::filesystem::path const& path, SafetensorsLimits const& limits);
  void index_tensors();

  std::vector<std::shared_ptr<SourceFile const>> files_;
  std::vector<std::unique_ptr<SafetensorsHeader const>> headers_;  // by file; tensors_ points into them
  std::vector<ShardTensor> tensors_;
  Bytes bytes_ = 0;
};

}  // namespace noria

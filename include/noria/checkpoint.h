/// Checkpoints as they lie on disk: safetensors files and folders of them, looked at without loading anything.
#pragma once

#include <noria/bytes.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace noria {

class ShardSet;

/// One tensor of a checkpoint; valid as long as the Checkpoint.
struct CheckpointTensor {
  std::string_view name;
  std::string_view dtype;  ///< as the file names it: "BF16", "F8_E4M3", ...
  std::span<std::uint64_t const> shape;
  std::string_view file;  ///< path of the file that holds it
  Bytes offset = 0;       ///< of its first byte in that file
  Bytes bytes = 0;
};

/// The weights of one model: a .safetensors file, a sharded checkpoint with an index, or a folder that holds either as
/// Diffusers and transformers write them. All files are opened and checked at once and kept open; cheap to copy.
class Checkpoint {
 public:
  /// `variant` is that of from_pretrained ("fp16"). Throws std::invalid_argument when there is no checkpoint,
  /// StorageError when a file cannot be read, IntegrityError when one is not what it must be.
  static Checkpoint open(std::filesystem::path const& path, std::string_view variant = {});
  /// Names of the components with weights in the folder of a Diffusers pipeline, each a folder to open(); empty for
  /// anything else.
  static std::vector<std::string> components(std::filesystem::path const& folder, std::string_view variant = {});

  /// Sorted by name.
  [[nodiscard]] std::vector<CheckpointTensor> tensors() const;
  [[nodiscard]] std::optional<CheckpointTensor> find(std::string_view name) const;
  /// Of all tensors together.
  [[nodiscard]] Bytes bytes() const noexcept;
  [[nodiscard]] std::size_t file_count() const noexcept;
  /// For the engine.
  [[nodiscard]] std::shared_ptr<ShardSet const> const& shards() const noexcept { return shards_; }

 private:
  explicit Checkpoint(std::shared_ptr<ShardSet const> shards) : shards_(std::move(shards)) {}
  std::shared_ptr<ShardSet const> shards_;
};

}  // namespace noria

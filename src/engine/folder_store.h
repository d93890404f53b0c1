/// The pages of a model in an offload folder of ours: the disk tier of a model that is in memory.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/tensor_table.h"
#include "io/offload_store.h"

namespace noria {

/// Note [Offload folders]
/// Each group lies in the file as it lies on the device, padding included, so that it is one read straight to its
/// place. The folder's manifest says whose bytes it holds by their checksum: a later run, or another process, uses them
/// only for a model with these very weights, and a folder never mixes up two components. Weights that a program changes
/// leave it as it is: they go to a nameless file beside it, which this process alone has and which dies with it.
class FolderStore {
 public:
  /// Uses what the folder holds, or writes it. `engine` says how groups are laid out and has no homes yet; the tensors
  /// of `table` have not been managed and are on the cpu. Throws StorageError, and IntegrityError when the folder
  /// cannot be trusted; the model is then as it was, and so is the folder.
  static std::shared_ptr<FolderStore> open_or_write(std::filesystem::path const& folder, Engine& engine,
                                                    TensorTable const& table);

  /// Makes its part of the folder the home of a group.
  void give_home(Engine& engine, plan::GroupIndex group) const;
  [[nodiscard]] std::filesystem::path const& folder() const { return folder_; }

 private:
  FolderStore(std::filesystem::path folder, std::unique_ptr<OffloadStore> store, std::vector<Bytes> page_offsets)
      : folder_(std::move(folder)), store_(std::move(store)), page_offsets_(std::move(page_offsets)) {}

  std::filesystem::path folder_;
  std::unique_ptr<OffloadStore> store_;
  std::vector<Bytes> page_offsets_;
};

}  // namespace noria

/// An offload folder as its readers see it.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/manifest.h"
#include "io/offload_writer.h"
#include "io/source_file.h"

namespace noria {

/// Weights in a folder of our own, complete and unchanged since they were written. Writers of new weights leave its
/// data file alone as long as it is open.
class OffloadStore {
 public:
  /// Opens what the folder holds; null when it holds nothing, or nothing whole. Throws StorageError when the folder
  /// cannot be read.
  static std::unique_ptr<OffloadStore> open(std::filesystem::path const& folder);

  /// Opens the folder when it holds exactly these tensors of this source, verified; else calls `write`, under the
  /// folder's lock, and opens the result. Several processes at once: one writes, the others wait and use its work.
  /// Throws StorageError, and whatever `write` throws; the folder then holds what it held.
  static std::unique_ptr<OffloadStore> open_or_write(std::filesystem::path const& folder,
                                                     std::map<std::string, std::string> const& source,
                                                     std::vector<StoredTensor> const& tensors,
                                                     std::function<void(OffloadWriter&)> const& write);

  [[nodiscard]] Manifest const& manifest() const noexcept { return manifest_; }
  [[nodiscard]] std::shared_ptr<SourceFile const> const& data() const noexcept { return data_; }
  /// Whether the data file is the very one that was published (then nothing needs verification).
  [[nodiscard]] bool as_published() const { return data_->file().identity() == manifest_.data_identity; }
  /// Reads everything once. Throws IntegrityError (ChecksumMismatch) that names the chunk and the tensors in it.
  void verify() const;

 private:
  OffloadStore(Manifest manifest, std::shared_ptr<SourceFile const> data)
      : manifest_(std::move(manifest)), data_(std::move(data)) {}

  Manifest manifest_;
  std::shared_ptr<SourceFile const> data_;
};

}  // namespace noria

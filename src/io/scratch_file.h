/// Bytes on disk that change while the program runs, and are worth nothing after it.
#pragma once

#include <noria/bytes.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "io/source_file.h"

namespace noria {

/// A file without a name: nobody else can open it, and it is gone with the last descriptor, however the process ends.
/// Takes room on the disk only for what was written.
class ScratchFile {
 public:
  /// In `folder`, of `size` bytes. Throws StorageError.
  ScratchFile(std::filesystem::path const& folder, Bytes size);

  /// Throws StorageError when it is not all on its way to the disk: full, or failing.
  void write(Bytes offset, std::span<std::byte const> bytes);
  /// Reads what was written last.
  [[nodiscard]] std::shared_ptr<SourceFile const> const& source() const { return source_; }

 private:
  std::filesystem::path folder_;
  Descriptor descriptor_;
  std::shared_ptr<SourceFile const> source_;
};

}  // namespace noria

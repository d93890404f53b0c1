/// A range of a file as memory.
#pragma once

#include "io/file.h"

namespace noria {

/// A private mapping: what is written to it stays in this process and never reaches the file. The price of having no
/// copy: when somebody truncates the file, touching the lost part kills the process, and what somebody writes into it
/// shows here.
class FileMapping {
 public:
  FileMapping() = default;
  /// Maps `bytes` from `offset`, which need not be aligned. Throws StorageError, or IntegrityError when the file has
  /// changed since it was opened or ends before.
  FileMapping(File const& file, Bytes offset, Bytes bytes);
  FileMapping(FileMapping&& other) noexcept;
  FileMapping& operator=(FileMapping&& other) noexcept;
  FileMapping(FileMapping const&) = delete;
  FileMapping& operator=(FileMapping const&) = delete;
  ~FileMapping() { reset(); }

  [[nodiscard]] std::byte* data() const noexcept { return begin_ + skipped_; }

 private:
  void reset() noexcept;

  std::byte* begin_ = nullptr;  // of a page
  Bytes mapped_ = 0;
  Bytes skipped_ = 0;  // to the first byte asked for
};

}  // namespace noria

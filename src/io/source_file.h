/// A file that weights are streamed from: two descriptors of one inode, one for each way to read it.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string_view>

#include "io/dio_caps.h"
#include "io/file.h"

namespace noria {

/// Shared by everybody who reads it; safe to use from several threads.
class SourceFile {
 public:
  explicit SourceFile(File file);
  /// Throws as File::open does.
  static std::shared_ptr<SourceFile const> open(std::filesystem::path const& path);

  [[nodiscard]] File const& file() const noexcept { return file_; }
  [[nodiscard]] DioCaps const& caps() const noexcept { return caps_; }
  /// Whether direct reads worked so far.
  [[nodiscard]] bool direct_usable() const noexcept { return caps_.usable && !direct_refused_.load(); }
  [[nodiscard]] int direct_descriptor() const noexcept { return direct_.get(); }
  /// Remembers that a real direct read was refused (some file systems accept the probe and not more); says so once.
  void refuse_direct(std::string_view why) const;

 private:
  File file_;
  Descriptor direct_;
  DioCaps caps_;
  mutable std::atomic<bool> direct_refused_ = false;
};

}  // namespace noria

/// A folder that exists as long as the object does.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace noria::testing {

class TempDir {
 public:
  /// Under `parent`, by default the system's temporary folder.
  explicit TempDir(std::filesystem::path const& parent = std::filesystem::temp_directory_path());
  ~TempDir();
  TempDir(TempDir const&) = delete;
  TempDir& operator=(TempDir const&) = delete;

  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }
  [[nodiscard]] std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// Creates or replaces the file (same inode when it exists).
void write_file(std::filesystem::path const& path, std::string_view bytes);
void write_file(std::filesystem::path const& path, std::span<std::byte const> bytes);
std::string read_file(std::filesystem::path const& path);

}  // namespace noria::testing

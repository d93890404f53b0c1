/// The index beside a checkpoint in several files: which tensor lies in which.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace noria {

/// A checked "*.safetensors.index.json". Its other fields (total sizes) are for people and are not looked at.
struct ShardIndex {
  std::vector<std::string> files;                              ///< sorted, each once; plain names, no folders
  std::vector<std::pair<std::string, std::uint32_t>> tensors;  ///< sorted by name; the number counts `files`

  /// Throws IntegrityError (IndexInvalid): not an index, a name twice, a file name that leaves the folder.
  static ShardIndex parse(std::string_view json, std::string const& path);
  static ShardIndex read(std::filesystem::path const& path);
};

}  // namespace noria

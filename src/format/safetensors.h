/// The safetensors file format: an 8-byte little-endian header length, a JSON header, then the data of all tensors.
/// Files come from strangers: everything the header claims is checked before any of it is used, and parsing is bounded
/// in time and memory by the header's length. Format: https://github.com/huggingface/safetensors (README, "Format").
#pragma once

#include <noria/bytes.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/file.h"

namespace noria {

/// One tensor of a checkpoint file.
struct TensorEntry {
  std::string name;
  std::string dtype;        ///< as the file names it: "BF16", "F8_E4M3", ...
  unsigned dtype_bits = 0;  ///< bits per element, 0 when this version does not know the dtype
  std::vector<std::uint64_t> shape;
  Bytes begin = 0;  ///< offset in the file, not in its data section
  Bytes end = 0;    ///< one past the last byte
  [[nodiscard]] Bytes bytes() const noexcept { return end - begin; }
};

/// Throws IntegrityError (DtypeUnknown) when this version cannot interpret the tensor's bytes.
void require_known_dtype(TensorEntry const& tensor, std::string const& path);

struct SafetensorsLimits {
  Bytes header_bytes = 100'000'000;  ///< as in the reference implementation
  std::size_t tensors = 1'000'000;
  std::size_t name_bytes = 4096;
  std::size_t rank = 64;
  /// Accept bytes after the last tensor (files padded by some transport).
  bool allow_trailing = false;
};

/// A checked header. Every tensor lies inside the file, none overlap, and together they cover the data section.
class SafetensorsHeader {
 public:
  SafetensorsHeader() = default;
  /// Parses the JSON that follows the length field of a file of `file_bytes` bytes; `path` is for messages only.
  /// Pure: reads no file. Throws IntegrityError with the code of the first fault found.
  static SafetensorsHeader parse(std::string_view json, Bytes file_bytes, std::string const& path,
                                 SafetensorsLimits const& limits = {});

  /// In file order.
  [[nodiscard]] std::span<TensorEntry const> tensors() const noexcept { return tensors_; }
  /// Null when there is none of that name. Valid as long as this object.
  [[nodiscard]] TensorEntry const* find(std::string_view name) const noexcept;
  /// The file's "__metadata__".
  [[nodiscard]] std::map<std::string, std::string> const& metadata() const noexcept { return metadata_; }
  /// Where the data section begins in the file.
  [[nodiscard]] Bytes data_begin() const noexcept { return data_begin_; }

 private:
  std::vector<TensorEntry> tensors_;
  std::vector<std::uint32_t> by_name_;  // indices into tensors_, sorted by name
  std::map<std::string, std::string> metadata_;
  Bytes data_begin_ = 0;
};

/// A safetensors file, open for reading, with its checked header.
class SafetensorsFile {
 public:
  /// Throws StorageError when the file cannot be read, IntegrityError when it is not what it must be.
  static SafetensorsFile open(std::filesystem::path const& path, SafetensorsLimits const& limits = {});

  [[nodiscard]] File const& file() const noexcept { return file_; }
  [[nodiscard]] SafetensorsHeader const& header() const noexcept { return header_; }
  [[nodiscard]] std::span<TensorEntry const> tensors() const noexcept { return header_.tensors(); }
  [[nodiscard]] TensorEntry const* find(std::string_view name) const noexcept { return header_.find(name); }
  /// The tensor whose bytes somebody wants. Throws std::invalid_argument when there is none of that name, and
  /// IntegrityError (DtypeUnknown) when this version cannot interpret it.
  [[nodiscard]] TensorEntry const& at(std::string_view name) const;
  /// Gives both away.
  std::pair<File, SafetensorsHeader> take() && { return {std::move(file_), std::move(header_)}; }

 private:
  File file_;
  SafetensorsHeader header_;
};

}  // namespace noria

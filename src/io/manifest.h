/// What an offload folder holds, and for whom: without a manifest that matches, its bytes are nobody's weights.
#pragma once

#include <noria/bytes.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/checksum.h"
#include "io/file.h"

namespace noria {

/// A tensor's bytes as they lie in its storage: strides and all, so that it comes back exactly as it was.
struct StoredTensor {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements
  Bytes offset = 0;                   ///< in the data file; tensors that share memory share bytes here
  Bytes bytes = 0;
  friend bool operator==(StoredTensor const&, StoredTensor const&) = default;
};

struct Manifest {
  /// Where the weights came from, in the words of whoever wrote them; a reuse must give the same words.
  std::map<std::string, std::string> source;
  std::vector<StoredTensor> tensors;
  std::string data_file;  ///< plain name, beside the manifest
  Bytes data_bytes = 0;
  Bytes chunk_bytes = Bytes{4} << 20U;
  std::vector<Checksum> checksums;  ///< XXH3-128 of each chunk of the data file
  /// The data file as it was when published: while it is still that, its bytes need no verification.
  FileIdentity data_identity;

  [[nodiscard]] std::string to_json() const;
  /// Checks everything it can without the data file. Throws IntegrityError (ManifestInvalid).
  static Manifest parse(std::string_view json, std::string const& path);

  /// The same weights, of the same source, in any place of the data file.
  [[nodiscard]] bool describes(std::map<std::string, std::string> const& wanted_source,
                               std::vector<StoredTensor> const& wanted_tensors) const;
};

}  // namespace noria

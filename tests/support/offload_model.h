/// A small model whose weights tell which model they are of: what the tests of the offload folder write.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/offload_store.h"

namespace noria::testing {

class OffloadModel {
 public:
  explicit OffloadModel(unsigned seed);

  [[nodiscard]] std::map<std::string, std::string> source() const;
  /// Without offsets.
  [[nodiscard]] std::vector<StoredTensor> const& tensors() const noexcept { return tensors_; }
  void write(OffloadWriter& writer) const { write(writer, tensors_); }
  void write(OffloadWriter& writer, std::vector<StoredTensor> const& described) const;
  [[nodiscard]] std::unique_ptr<OffloadStore> open_or_write(std::filesystem::path const& folder) const;
  /// The first tensor whose bytes in the store are not this model's, empty when there is none.
  [[nodiscard]] std::string differing_tensor(OffloadStore const& store) const;

 private:
  unsigned seed_;
  std::vector<StoredTensor> tensors_;
  std::vector<std::string> bytes_;
};

}  // namespace noria::testing

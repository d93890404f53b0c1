#include "support/offload_model.h"

#include <span>

#include "support/read_cases.h"

namespace noria::testing {

OffloadModel::OffloadModel(unsigned seed) : seed_(seed) {
  // A contiguous one, a channels-last one, a scalar and an empty one; larger than one checksum chunk together.
  tensors_ = {{.name = "block.0.weight",
               .dtype = "F32",
               .shape = {1024, 1200},
               .strides = {1200, 1},
               .offset = 0,
               .bytes = 4'915'200},
              {.name = "conv.weight",
               .dtype = "BF16",
               .shape = {8, 4, 3, 3},
               .strides = {36, 1, 12, 4},
               .offset = 0,
               .bytes = 576},
              {.name = "scale", .dtype = "F64", .shape = {}, .strides = {}, .offset = 0, .bytes = 8},
              {.name = "empty", .dtype = "U8", .shape = {0}, .strides = {1}, .offset = 0, .bytes = 0}};
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    bytes_.push_back(pattern(tensors_[i].bytes, seed * 100 + static_cast<unsigned>(i)));
  }
}

std::map<std::string, std::string> OffloadModel::source() const { return {{"checkpoint", std::to_string(seed_)}}; }

void OffloadModel::write(OffloadWriter& writer, std::vector<StoredTensor> const& described) const {
  for (std::size_t i = 0; i < described.size(); ++i) {
    StoredTensor tensor = described[i];
    tensor.offset = writer.append(std::as_bytes(std::span(bytes_[i])), 64);
    writer.describe(std::move(tensor));
  }
}

std::unique_ptr<OffloadStore> OffloadModel::open_or_write(std::filesystem::path const& folder) const {
  return OffloadStore::open_or_write(folder, source(), tensors_, [&](OffloadWriter& writer) { write(writer); });
}

std::string OffloadModel::differing_tensor(OffloadStore const& store) const {
  for (StoredTensor const& stored : store.manifest().tensors) {
    std::string bytes(stored.bytes, '\0');
    store.data()->file().read_exact(stored.offset, std::as_writable_bytes(std::span(bytes)));
    bool found = false;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      found = found || (tensors_[i].name == stored.name && bytes_[i] == bytes);
    }
    if (!found) {
      return stored.name;
    }
  }
  return store.manifest().tensors.size() == tensors_.size() ? "" : "(another number of tensors)";
}

}  // namespace noria::testing

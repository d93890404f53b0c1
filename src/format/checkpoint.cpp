#include <noria/checkpoint.h>

#include "format/checkpoint_layout.h"
#include "format/shard_set.h"

namespace noria {
namespace {

CheckpointTensor described(ShardSet const& shards, ShardTensor const& tensor) {
  return {.name = tensor.entry->name,
          .dtype = tensor.entry->dtype,
          .shape = tensor.entry->shape,
          .file = shards.files()[tensor.file]->file().path(),
          .offset = tensor.entry->begin,
          .bytes = tensor.entry->bytes()};
}

}  // namespace

Checkpoint Checkpoint::open(std::filesystem::path const& path, std::string_view variant) {
  return Checkpoint(std::make_shared<ShardSet const>(ShardSet::open(path, variant)));
}

std::vector<std::string> Checkpoint::components(std::filesystem::path const& folder, std::string_view variant) {
  return pipeline_components(folder, variant);
}

std::vector<CheckpointTensor> Checkpoint::tensors() const {
  std::vector<CheckpointTensor> all;
  all.reserve(shards_->tensors().size());
  for (ShardTensor const& tensor : shards_->tensors()) {
    all.push_back(described(*shards_, tensor));
  }
  return all;
}

std::optional<CheckpointTensor> Checkpoint::find(std::string_view name) const {
  ShardTensor const tensor = shards_->find(name);
  if (tensor.entry == nullptr) {
    return std::nullopt;
  }
  return described(*shards_, tensor);
}

Bytes Checkpoint::bytes() const noexcept { return shards_->bytes(); }

std::size_t Checkpoint::file_count() const noexcept { return shards_->files().size(); }

}  // namespace noria

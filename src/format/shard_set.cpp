#include "format/shard_set.h"

#include <fmt/format.h>
#include <noria/error.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "format/shard_index.h"

namespace noria {
namespace {

// Every tensor of the index lies in the shard that the index names.
void check_index(ShardIndex const& index, ShardSet const& shards, std::string const& path) {
  for (auto const& [name, file] : index.tensors) {
    ShardTensor const found = shards.find(name);
    if (found.entry == nullptr || found.file != file) {
      throw IntegrityError(IntegrityCode::kIndexInvalid, path,
                           fmt::format("tensor '{}' is said to be in '{}' and is {}", name, index.files[file],
                                       found.entry == nullptr ? "in no shard" : "in another"));
    }
  }
}

}  // namespace

ShardSet ShardSet::open(std::filesystem::path const& path, std::string_view variant, SafetensorsLimits const& limits) {
  std::optional<CheckpointFiles> const found = find_checkpoint(path, variant);
  if (!found) {
    throw std::invalid_argument(fmt::format("'{}' holds no safetensors checkpoint{}", path.string(),
                                            variant.empty() ? "" : fmt::format(" of the variant '{}'", variant)));
  }
  ShardSet shards;
  if (!found->single.empty()) {
    shards.add(found->single, limits);
    shards.index_tensors();
    return shards;
  }
  ShardIndex const index = ShardIndex::read(found->index);
  for (std::string const& file : index.files) {
    try {
      shards.add(found->index.parent_path() / file, limits);
    } catch (StorageError const& error) {
      if (error.error_number() != ENOENT) {
        throw;
      }
      throw IntegrityError(IntegrityCode::kIndexInvalid, found->index.string(),
                           fmt::format("shard '{}' is missing: it may be an incomplete download", file));
    }
  }
  shards.index_tensors();
  check_index(index, shards, found->index.string());
  return shards;
}

void ShardSet::add(std::filesystem::path const& path, SafetensorsLimits const& limits) {
  SafetensorsFile opened = SafetensorsFile::open(path, limits);
  auto [file, header] = std::move(opened).take();
  headers_.push_back(std::make_unique<SafetensorsHeader const>(std::move(header)));
  files_.push_back(std::make_shared<SourceFile const>(std::move(file)));
}

void ShardSet::index_tensors() {
  for (std::uint32_t file = 0; file < headers_.size(); ++file) {
    for (TensorEntry const& entry : headers_[file]->tensors()) {
      tensors_.push_back({.file = file, .entry = &entry});
      bytes_ += entry.bytes();
    }
  }
  auto const name_of = [](ShardTensor const& tensor) -> std::string const& { return tensor.entry->name; };
  std::ranges::sort(tensors_, {}, name_of);
  auto const twice = std::ranges::adjacent_find(tensors_, {}, name_of);
  if (twice != tensors_.end()) {
    throw IntegrityError(IntegrityCode::kIndexInvalid, files_[twice->file]->file().path(),
                         fmt::format("tensor '{}' is here and in '{}' too", name_of(*twice),
                                     files_[std::next(twice)->file]->file().path()));
  }
}

ShardTensor ShardSet::find(std::string_view name) const noexcept {
  auto const found = std::ranges::lower_bound(tensors_, name, {},
                                              [](ShardTensor const& t) { return std::string_view(t.entry->name); });
  return found == tensors_.end() || found->entry->name != name ? ShardTensor{} : *found;
}

ShardTensor ShardSet::at(std::string_view name) const {
  ShardTensor const tensor = find(name);
  if (tensor.entry == nullptr) {
    throw std::invalid_argument(fmt::format("the checkpoint of {} file(s) has no tensor '{}'", files_.size(), name));
  }
  require_known_dtype(*tensor.entry, files_[tensor.file]->file().path());
  return tensor;
}

void ShardSet::check_unchanged() const {
  for (auto const& file : files_) {
    file->file().check_unchanged();
  }
}

}  // namespace noria

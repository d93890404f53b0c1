#include "engine/folder_store.h"

#include <noria/error.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "io/checksum.h"

namespace noria {
namespace {

/// One checksum for all weights: of the checksums of the pages, in the model's order.
std::string content_of(TensorTable const& table) {
  std::vector<Checksum> sums;
  sums.reserve(table.pages().size());
  for (plan::PageIndex page = 0; page < table.pages().size(); ++page) {
    sums.push_back(checksum(table.bytes_of(page)));
  }
  return checksum(std::as_bytes(std::span<Checksum const>(sums))).hex();
}

}  // namespace

std::shared_ptr<FolderStore> FolderStore::open_or_write(std::filesystem::path const& folder, Engine& engine,
                                                        TensorTable const& table) {
  std::vector<StoredTensor> const tensors = table.stored_tensors();
  std::map<std::string, std::string> const source{{"content", "xxh3-128:" + content_of(table)}};
  auto const write = [&](OffloadWriter& writer) {
    Bytes total = 0;
    for (plan::GroupIndex g = 0; g < engine.group_count(); ++g) {
      total += align_up(engine.group_bytes(g), 4096);
    }
    writer.reserve(total);
    std::vector<Bytes> offsets(engine.page_count());
    std::vector<std::byte> image;
    for (plan::GroupIndex g = 0; g < engine.group_count(); ++g) {
      image.assign(engine.group_bytes(g), std::byte{0});
      for (plan::PageIndex page : engine.group_pages(g)) {
        std::span<std::byte const> const bytes = table.bytes_of(page);
        std::memcpy(image.data() + engine.page(page).offset(), bytes.data(), bytes.size());
      }
      Bytes const begin = writer.append(image);
      for (plan::PageIndex page : engine.group_pages(g)) {
        offsets[page] = begin + engine.page(page).offset();
      }
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      StoredTensor tensor = tensors[i];
      if (plan::PageIndex const page = table.page_of(i); page != TensorTable::kNoPage) {
        tensor.offset += offsets[page];  // so far from the start of its page
      }
      writer.describe(std::move(tensor));
    }
  };
  std::unique_ptr<OffloadStore> store = OffloadStore::open_or_write(folder, source, tensors, write);
  engine.set_scratch_folder(folder);
  std::map<std::string, Bytes> places;
  for (StoredTensor const& tensor : store->manifest().tensors) {
    places[tensor.name] = tensor.offset;
  }
  std::vector<Bytes> page_offsets(engine.page_count());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (plan::PageIndex const page = table.page_of(i); page != TensorTable::kNoPage) {
      page_offsets[page] = places.at(tensors[i].name) - tensors[i].offset;
    }
  }
  return std::shared_ptr<FolderStore>(new FolderStore(folder, std::move(store), std::move(page_offsets)));
}

void FolderStore::give_home(Engine& engine, plan::GroupIndex group) const {
  std::vector<plan::PageIndex> const& pages = engine.group_pages(group);
  Bytes const begin = page_offsets_[pages.front()] - engine.page(pages.front()).offset();
  // Written by an engine that grouped otherwise, pages lie elsewhere; then each is a read of its own.
  bool const in_one_piece = std::ranges::all_of(
      pages, [&](plan::PageIndex page) { return page_offsets_[page] == begin + engine.page(page).offset(); });
  std::vector<FileExtent> extents;
  if (in_one_piece && begin + engine.group_bytes(group) <= store_->manifest().data_bytes) {
    extents.push_back({.file = store_->data(), .file_offset = begin, .bytes = engine.group_bytes(group)});
  } else {
    for (plan::PageIndex page : pages) {
      extents.push_back({.file = store_->data(),
                         .file_offset = page_offsets_[page],
                         .group_offset = engine.page(page).offset(),
                         .bytes = engine.page(page).bytes()});
    }
  }
  engine.give_home(group, HostHome(std::move(extents), {}));
}

}  // namespace noria

#include "io/offload_store.h"

#include <fmt/format.h>
#include <noria/error.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "core/log.h"
#include "io/aligned_buffer.h"

namespace noria {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kLargestManifest = Bytes{256} << 20U;
// A writer may publish new weights between our two looks at the folder; not this often.
constexpr int kAttempts = 16;

std::string read_text(fs::path const& path) {
  File const file = File::open(path);
  if (file.size() > kLargestManifest) {
    throw IntegrityError(IntegrityCode::kManifestInvalid, file.path(), "too large for a manifest");
  }
  std::string text(file.size(), '\0');
  file.read_exact(0, std::as_writable_bytes(std::span(text)));
  return text;
}

// The file with a shared lock on it, empty when it lost its name before the lock was ours.
File open_locked(fs::path const& path) {
  File file = File::open(path);
  ::flock(file.descriptor(), LOCK_SH);
  struct stat status{};
  if (::fstat(file.descriptor(), &status) != 0 || status.st_nlink == 0) {
    return {};
  }
  return file;
}

std::unique_ptr<OffloadStore> usable(fs::path const& folder, std::map<std::string, std::string> const& source,
                                     std::vector<StoredTensor> const& tensors) {
  std::unique_ptr<OffloadStore> store = OffloadStore::open(folder);
  if (store == nullptr || !store->manifest().describes(source, tensors)) {
    return nullptr;
  }
  if (!store->as_published()) {
    try {
      store->verify();
    } catch (IntegrityError const& error) {
      log(LogLevel::kWarning, fmt::format("the offload folder is written again: {}", error.what()));
      return nullptr;
    }
  }
  return store;
}

}  // namespace

std::unique_ptr<OffloadStore> OffloadStore::open(fs::path const& folder) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    try {
      Manifest manifest = Manifest::parse(read_text(folder / kManifestName), (folder / kManifestName).string());
      File data = open_locked(folder / manifest.data_file);
      if (data.descriptor() < 0) {
        continue;
      }
      if (data.size() != manifest.data_bytes) {
        log(LogLevel::kWarning, fmt::format("'{}' has {} bytes and its manifest says {}; it is not used", data.path(),
                                            data.size(), manifest.data_bytes));
        return nullptr;
      }
      auto source = std::make_shared<SourceFile const>(std::move(data));
      return std::unique_ptr<OffloadStore>(new OffloadStore(std::move(manifest), std::move(source)));
    } catch (IntegrityError const& error) {
      log(LogLevel::kWarning, fmt::format("an offload folder is not used: {}", error.what()));
      return nullptr;
    } catch (StorageError const& error) {
      if (error.error_number() != ENOENT && error.error_number() != ENOTDIR) {
        throw;
      }
      if (!fs::exists(folder / kManifestName)) {
        return nullptr;
      }
    }
  }
  return nullptr;
}

std::unique_ptr<OffloadStore> OffloadStore::open_or_write(fs::path const& folder,
                                                          std::map<std::string, std::string> const& source,
                                                          std::vector<StoredTensor> const& tensors,
                                                          std::function<void(OffloadWriter&)> const& write) {
  if (std::unique_ptr<OffloadStore> store = usable(folder, source, tensors)) {
    return store;
  }
  FolderLock const lock(folder);
  if (std::unique_ptr<OffloadStore> store = usable(folder, source, tensors)) {
    return store;
  }
  {
    OffloadWriter writer(folder, source);
    write(writer);
    Manifest const written = writer.publish();
    NORIA_ASSERT(written.describes(source, tensors), "the writer was given other tensors than it was asked for");
  }
  std::unique_ptr<OffloadStore> store = open(folder);
  NORIA_CHECK(store != nullptr, StorageError,
              fmt::format("the weights written to '{}' cannot be read back", folder.string()), folder.string(), 0);
  return store;
}

void OffloadStore::verify() const {
  File const& file = data_->file();
  AlignedBuffer const buffer(std::min(manifest_.chunk_bytes, std::max<Bytes>(manifest_.data_bytes, 1)));
  for (std::size_t i = 0; i < manifest_.checksums.size(); ++i) {
    Bytes const begin = i * manifest_.chunk_bytes;
    auto const chunk = buffer.bytes().first(std::min(manifest_.chunk_bytes, manifest_.data_bytes - begin));
    file.read_exact(begin, chunk);
    if (checksum(chunk) == manifest_.checksums[i]) {
      continue;
    }
    auto const inside = std::ranges::find_if(manifest_.tensors, [&](StoredTensor const& tensor) {
      return tensor.offset < begin + chunk.size() && begin < tensor.offset + tensor.bytes;
    });
    throw IntegrityError(
        IntegrityCode::kChecksumMismatch, file.path(),
        fmt::format("the bytes from {} to {} are not what was written (tensor '{}'); delete the folder and run again",
                    begin, begin + chunk.size(), inside == manifest_.tensors.end() ? "none" : inside->name));
  }
  file.check_unchanged();
}

}  // namespace noria

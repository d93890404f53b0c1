#include "io/offload_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <noria/error.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>
#include <utility>

#include "core/log.h"

namespace noria {
namespace {

namespace fs = std::filesystem;

constexpr char const* kLockName = ".lock";
constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr std::string_view kDataPrefix = "weights-";
constexpr std::string_view kDataSuffix = ".bin";
constexpr std::size_t kLongestFolderName = 120;
// Direct reads end on whole blocks, so the file does.
constexpr Bytes kFileAlignment = 4096;

[[noreturn]] void fail_at(fs::path const& path, char const* what, int error) {
  throw StorageError(fmt::format("{} '{}' failed: {}", what, path.string(), std::strerror(error)), path.string(),
                     error);
}

void sync_folder(fs::path const& folder) {
  Descriptor const descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: a file system that has nothing to flush for a folder.
  if (!descriptor || (::fsync(descriptor.get()) != 0 && errno != EINVAL)) {
    fail_at(folder, "flushing the folder", errno);
  }
}

void write_all(int fd, std::span<std::byte const> bytes, Bytes offset, fs::path const& path) {
  while (!bytes.empty()) {
    ssize_t const put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno != EINTR) {
      fail_at(path, "writing", errno);
    }
    if (put > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(put));
      offset += static_cast<Bytes>(put);
    }
  }
}

void publish_text(fs::path const& path, std::string const& text) {
  fs::path const temporary = path.string() + std::string(kTemporarySuffix);
  Descriptor const descriptor(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!descriptor) {
    fail_at(temporary, "creating", errno);
  }
  write_all(descriptor.get(), std::as_bytes(std::span(text)), 0, temporary);
  if (::fsync(descriptor.get()) != 0) {
    fail_at(temporary, "flushing", errno);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    fail_at(path, "publishing", errno);
  }
}

bool is_data_name(std::string_view name) { return name.starts_with(kDataPrefix) && name.ends_with(kDataSuffix); }

// Readers hold a shared lock on the file they read; taking their file's name away would look like a change to them.
void remove_if_unread(fs::path const& path) {
  Descriptor const descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (descriptor && ::flock(descriptor.get(), LOCK_EX | LOCK_NB) == 0) {
    ::unlink(path.c_str());
  }
}

template <typename Wanted>
std::vector<fs::path> entries(fs::path const& folder, Wanted wanted) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    if (wanted(i->path().filename().string())) {
      found.push_back(i->path());
    }
  }
  return found;
}

std::string random_name() {
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}", kDataPrefix, random(), random());
}

}  // namespace

std::string component_folder(std::string_view component) {
  std::string name;
  for (char const c : component) {
    bool const plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '_' || (c == '.' && !name.empty());
    name += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  if (name.empty()) {
    return "%";  // no other name gives it
  }
  if (name.size() > kLongestFolderName) {
    name = fmt::format("{}%{}", name.substr(0, kLongestFolderName - 40),
                       checksum(std::as_bytes(std::span(component))).hex());
  }
  return name;
}

FolderLock::FolderLock(fs::path const& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    fail_at(folder, "making the folder", error.value());
  }
  fs::path const path = folder / kLockName;
  descriptor_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!descriptor_) {
    fail_at(path, "opening", errno);
  }
  if (::flock(descriptor_.get(), LOCK_EX | LOCK_NB) == 0) {
    return;
  }
  if (errno == EWOULDBLOCK) {
    log(LogLevel::kInfo, fmt::format("waiting for another writer of '{}'", folder.string()));
  }
  while (::flock(descriptor_.get(), LOCK_EX) != 0) {
    if (errno != EINTR) {
      fail_at(path, "locking", errno);
    }
  }
}

OffloadWriter::OffloadWriter(fs::path folder, std::map<std::string, std::string> source)
    : folder_(std::move(folder)), checksums_(Manifest{}.chunk_bytes) {
  manifest_.source = std::move(source);
  for (fs::path const& stale :
       entries(folder_, [](std::string_view name) { return name.ends_with(kTemporarySuffix); })) {
    ::unlink(stale.c_str());
  }
  std::string const name = random_name();
  manifest_.data_file = name + std::string(kDataSuffix);
  temporary_ = folder_ / (name + std::string(kTemporarySuffix));
  descriptor_ = Descriptor(::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!descriptor_) {
    fail_at(temporary_, "creating", errno);
  }
}

OffloadWriter::~OffloadWriter() {
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

void OffloadWriter::fail(std::string const& what, int error) const {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    std::error_code ignored;
    fs::space_info const space = fs::space(folder_, ignored);
    throw StorageError(
        fmt::format("{} in '{}' failed: {}; {} were written and {} are free there. Make room or choose "
                    "another folder; the model is as it was",
                    what, folder_.string(), std::strerror(error), format_bytes(size_), format_bytes(space.available)),
        temporary_.string(), error, size_);
  }
  throw StorageError(fmt::format("{} in '{}' failed: {}", what, folder_.string(), std::strerror(error)),
                     temporary_.string(), error, size_);
}

void OffloadWriter::reserve(Bytes bytes) {
  // Not posix_fallocate: where the file system cannot, that one writes zeros instead.
  if (bytes != 0 && ::fallocate(descriptor_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) != 0) {
    int const error = errno;
    if (error != EOPNOTSUPP && error != ENOSYS && error != EINTR) {
      fail(fmt::format("making room for {} of weights", format_bytes(bytes)), error);
    }
  }
}

void OffloadWriter::write(std::span<std::byte const> bytes) {
  try {
    write_all(descriptor_.get(), bytes, size_, temporary_);
  } catch (StorageError const& error) {
    fail(fmt::format("writing {} of weights", format_bytes(bytes.size())), error.error_number());
  }
  checksums_.update(bytes);
  size_ += bytes.size();
}

Bytes OffloadWriter::append(std::span<std::byte const> bytes, Bytes alignment) {
  static constexpr std::array<std::byte, kFileAlignment> kZeros{};
  for (Bytes padding = align_up(size_, alignment) - size_; padding != 0;) {
    Bytes const part = std::min<Bytes>(padding, kZeros.size());
    write(std::span(kZeros).first(part));
    padding -= part;
  }
  Bytes const offset = size_;
  write(bytes);
  return offset;
}

void OffloadWriter::describe(StoredTensor tensor) {
  NORIA_ASSERT(tensor.bytes <= size_ && tensor.offset <= size_ - tensor.bytes, "a tensor is described after its bytes");
  manifest_.tensors.push_back(std::move(tensor));
}

Manifest OffloadWriter::publish() {
  append({}, kFileAlignment);
  manifest_.data_bytes = size_;
  manifest_.checksums = checksums_.finish();
  if (::fsync(descriptor_.get()) != 0) {
    fail("flushing the weights", errno);
  }
  fs::path const data = folder_ / manifest_.data_file;
  if (::rename(temporary_.c_str(), data.c_str()) != 0) {
    fail("naming the weights", errno);
  }
  // From here on the temporary name is the data file's: a failure below takes it away again.
  temporary_ = data;
  sync_folder(folder_);
  manifest_.data_identity = File::open(data).identity();
  publish_text(folder_ / kManifestName, manifest_.to_json());
  temporary_.clear();
  sync_folder(folder_);
  for (fs::path const& old :
       entries(folder_, [&](std::string_view name) { return is_data_name(name) && name != manifest_.data_file; })) {
    remove_if_unread(old);
  }
  return manifest_;
}

}  // namespace noria

#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <noria/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace noria {
namespace {

// The kernel moves at most this much per call (MAX_RW_COUNT: INT_MAX rounded down to a page).
constexpr Bytes kLargestRead = 0x7ffff000;

std::int64_t nanoseconds(timespec const& time) { return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

FileIdentity identity_of(struct stat const& status) {
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .size = static_cast<Bytes>(status.st_size),
          .modified_ns = nanoseconds(status.st_mtim),
          .changed_ns = nanoseconds(status.st_ctim)};
}

struct stat status_of(int fd, std::string const& path) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) {
    int const error = errno;
    throw StorageError(fmt::format("cannot examine '{}': {}", path, std::strerror(error)), path, error);
  }
  return status;
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int Descriptor::release() noexcept { return std::exchange(fd_, -1); }

void Descriptor::reset() noexcept {
  if (fd_ >= 0) {
    ::close(std::exchange(fd_, -1));
  }
}

File File::open(std::filesystem::path const& path) {
  File file;
  file.path_ = path.string();
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  file.descriptor_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.descriptor_) {
    int const error = errno;
    throw StorageError(fmt::format("cannot open '{}': {}", file.path_, std::strerror(error)), file.path_, error);
  }
  struct stat const status = status_of(file.descriptor(), file.path_);
  if (!S_ISREG(status.st_mode)) {
    throw StorageError(
        fmt::format("'{}' is not a regular file; noria reads weights from regular files only", file.path_), file.path_,
        S_ISDIR(status.st_mode) ? EISDIR : EINVAL);
  }
  file.identity_ = identity_of(status);
  return file;
}

File File::of_ours(Descriptor descriptor, std::string name) {
  File file;
  file.path_ = std::move(name);
  file.descriptor_ = std::move(descriptor);
  file.identity_ = identity_of(status_of(file.descriptor(), file.path_));
  file.ours_ = true;
  return file;
}

void File::read_exact(Bytes offset, std::span<std::byte> destination) const {
  while (!destination.empty()) {
    ssize_t const got = ::pread(descriptor(), destination.data(), std::min<Bytes>(destination.size(), kLargestRead),
                                static_cast<off_t>(offset));
    if (got < 0) {
      int const error = errno;
      if (error == EINTR) {
        continue;
      }
      throw StorageError(fmt::format("reading {} bytes at offset {} of '{}' failed: {}", destination.size(), offset,
                                     path_, std::strerror(error)),
                         path_, error, offset);
    }
    if (got == 0) {
      throw IntegrityError(IntegrityCode::kFileTruncated, path_,
                           fmt::format("the file ends at {}, {} bytes before what was wanted; it had {} bytes when it "
                                       "was opened",
                                       offset, destination.size(), identity_.size));
    }
    offset += static_cast<Bytes>(got);
    destination = destination.subspan(static_cast<std::size_t>(got));
  }
}

FileIdentity File::identity_now() const { return identity_of(status_of(descriptor(), path_)); }

void File::check_unchanged() const {
  if (ours_) {
    return;
  }
  FileIdentity const now = identity_now();
  if (now == identity_) {
    return;
  }
  if (now.size < identity_.size) {
    throw IntegrityError(IntegrityCode::kFileTruncated, path_,
                         fmt::format("the file had {} bytes when it was opened and has {} now; restore it and open the "
                                     "model again",
                                     identity_.size, now.size));
  }
  char const* what = now.size != identity_.size                 ? "its size"
                     : now.modified_ns != identity_.modified_ns ? "its modification time"
                                                                : "its change time (written, replaced or removed)";
  throw IntegrityError(
      IntegrityCode::kFileChanged, path_,
      fmt::format("the file is not what it was when it was opened: {} differs; open the model again", what));
}

Descriptor File::reopen(int extra_flags, int* error_number) const {
  // Through /proc the same inode is opened, whatever its name is by now; without /proc the name must still lead to it.
  std::string const self = fmt::format("/proc/self/fd/{}", descriptor());
  int const flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | extra_flags;
  Descriptor second(::open(self.c_str(), flags));
  if (!second && (errno == ENOENT || errno == EACCES)) {
    second = Descriptor(::open(path_.c_str(), flags));
  }
  if (!second) {
    *error_number = errno;
    return {};
  }
  struct stat status{};
  if (::fstat(second.get(), &status) != 0 || status.st_ino != identity_.inode || status.st_dev != identity_.device) {
    *error_number = ESTALE;
    return {};
  }
  *error_number = 0;
  return second;
}

}  // namespace noria

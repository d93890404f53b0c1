/// A regular file held open for reading, and the proof that it is still the file that was opened.
#pragma once

#include <noria/bytes.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace noria {

/// What tells one state of a file from another. Times are nanoseconds since the epoch. The change time is in it because
/// a writer can set the modification time back, and not this one.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  Bytes size = 0;
  std::int64_t modified_ns = 0;
  std::int64_t changed_ns = 0;
  friend bool operator==(FileIdentity const&, FileIdentity const&) = default;
};

/// Owns a file descriptor; movable, closes on destruction. -1 when empty.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(Descriptor const&) = delete;
  Descriptor& operator=(Descriptor const&) = delete;
  ~Descriptor() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept;
  void reset() noexcept;

 private:
  int fd_ = -1;
};

/// A checkpoint file, opened once and kept: renaming another file to its name cannot swap the data under us.
/// Const members are safe to call from several threads at once.
class File {
 public:
  File() = default;
  /// Opens `path` for reading. Throws StorageError when it cannot be opened or is not a regular file (a pipe or device
  /// in a model folder is refused without blocking).
  static File open(std::filesystem::path const& path);
  /// A file that this process writes itself: it may change, and is not compared with what it was. `name` is for
  /// messages. Throws StorageError.
  static File of_ours(Descriptor descriptor, std::string name);

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }
  /// As it was when opened.
  [[nodiscard]] FileIdentity const& identity() const noexcept { return identity_; }
  [[nodiscard]] Bytes size() const noexcept { return identity_.size; }

  /// Fills `destination` with the bytes at `offset`; short reads and EINTR are retried.
  /// Throws StorageError, or IntegrityError (FileTruncated) when the file ends first; `destination` is then undefined.
  void read_exact(Bytes offset, std::span<std::byte> destination) const;

  /// Asks the system again who this file is. Throws StorageError.
  [[nodiscard]] FileIdentity identity_now() const;
  /// Throws IntegrityError (FileChanged, FileTruncated) when the file was written, replaced, truncated or removed since
  /// it was opened, and is not of ours.
  void check_unchanged() const;

  /// A second descriptor of the same inode with the given open(2) flags added (O_DIRECT), empty when the system
  /// refuses. `error_number` then tells why.
  [[nodiscard]] Descriptor reopen(int extra_flags, int* error_number) const;

 private:
  std::string path_;
  Descriptor descriptor_;
  FileIdentity identity_;
  bool ours_ = false;
};

}  // namespace noria

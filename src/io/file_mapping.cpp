#include "io/file_mapping.h"

#include <fmt/format.h>
#include <noria/error.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace noria {

FileMapping::FileMapping(File const& file, Bytes offset, Bytes bytes) {
  NORIA_CHECK(bytes > 0 && offset <= file.size() && bytes <= file.size() - offset, IntegrityError,
              IntegrityCode::kFileTruncated, file.path(),
              fmt::format("{} bytes at {} are asked for and the file has {}", bytes, offset, file.size()));
  auto const page = static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
  skipped_ = offset % page;
  mapped_ = skipped_ + bytes;
  void* const memory = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.descriptor(),
                              static_cast<off_t>(offset - skipped_));
  if (memory == MAP_FAILED) {
    int const error = errno;
    throw StorageError(
        fmt::format("{} bytes at {} of '{}' cannot be mapped: {}", bytes, offset, file.path(), std::strerror(error)),
        file.path(), error, offset);
  }
  begin_ = static_cast<std::byte*>(memory);
  try {
    file.check_unchanged();
  } catch (...) {
    reset();
    throw;
  }
}

FileMapping::FileMapping(FileMapping&& other) noexcept
    : begin_(std::exchange(other.begin_, nullptr)), mapped_(other.mapped_), skipped_(other.skipped_) {}

FileMapping& FileMapping::operator=(FileMapping&& other) noexcept {
  if (this != &other) {
    reset();
    begin_ = std::exchange(other.begin_, nullptr);
    mapped_ = other.mapped_;
    skipped_ = other.skipped_;
  }
  return *this;
}

void FileMapping::reset() noexcept {
  if (begin_ != nullptr) {
    ::munmap(std::exchange(begin_, nullptr), mapped_);
  }
}

}  // namespace noria

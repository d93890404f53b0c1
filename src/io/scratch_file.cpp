#include "io/scratch_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <noria/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace noria {
namespace {

[[noreturn]] void fail(std::string const& what, std::filesystem::path const& folder, int error, Bytes offset = 0) {
  throw StorageError(fmt::format("{} in '{}' failed: {}", what, folder.string(), std::strerror(error)), folder.string(),
                     error, offset);
}

Descriptor open_nameless(std::filesystem::path const& folder) {
#ifdef O_TMPFILE
  if (Descriptor file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)); file) {
    return file;
  }
#endif
  // File systems without nameless files (overlay, network) have files whose name can be taken away.
  std::string name = (folder / ".noria-scratch-XXXXXX").string();
  Descriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file) {
    fail("making a file for changed weights", folder, errno);
  }
  ::unlink(name.c_str());
  return file;
}

}  // namespace

ScratchFile::ScratchFile(std::filesystem::path const& folder, Bytes size)
    : folder_(folder), descriptor_(open_nameless(folder)) {
  if (::ftruncate(descriptor_.get(), static_cast<off_t>(size)) != 0) {
    fail(fmt::format("making a file of {} for changed weights", format_bytes(size)), folder_, errno);
  }
  Descriptor second(::fcntl(descriptor_.get(), F_DUPFD_CLOEXEC, 0));
  if (!second) {
    fail("opening the file for changed weights again", folder_, errno);
  }
  source_ = std::make_shared<SourceFile const>(
      File::of_ours(std::move(second), (folder_ / "(nameless file of changed weights)").string()));
}

void ScratchFile::write(Bytes offset, std::span<std::byte const> bytes) {
  while (!bytes.empty()) {
    ssize_t const put = ::pwrite(descriptor_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0) {
      if (int const error = errno; error != EINTR) {
        fail(fmt::format("writing {} of changed weights back", format_bytes(bytes.size())), folder_, error, offset);
      }
      continue;
    }
    offset += static_cast<Bytes>(put);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

}  // namespace noria

#include "io/source_file.h"

#include <fmt/format.h>

#include <utility>

#include "core/log.h"

namespace noria {

SourceFile::SourceFile(File file) : file_(std::move(file)), caps_(probe_direct_io(file_, &direct_)) {}

std::shared_ptr<SourceFile const> SourceFile::open(std::filesystem::path const& path) {
  return std::make_shared<SourceFile const>(File::open(path));
}

void SourceFile::refuse_direct(std::string_view why) const {
  if (!direct_refused_.exchange(true)) {
    log(LogLevel::kWarning,
        fmt::format("direct reads of '{}' are refused ({}); reading it through the page cache", file_.path(), why));
  }
}

}  // namespace noria

/// How much of a file the system already holds in memory, and how to make it forget.
#pragma once

#include <noria/bytes.h>

#include <optional>

#include "io/file.h"

namespace noria {

/// Bytes of [offset, offset + length) of the file that are in the page cache, counted in whole pages and cut to the
/// range. Empty when the system does not tell (no permission, no such call): assume nothing then.
/// Asks cachestat(2) (Linux 6.5), else mincore(2) over a mapping that is never read.
std::optional<Bytes> cached_bytes(File const& file, Bytes offset, Bytes length);

/// For benchmarks and tests: writes dirty pages out, asks the system to drop the file's pages, and answers how many
/// bytes of it are still cached; 0 means that the next read is cold. A file that is mapped anywhere, or that lives in
/// memory (tmpfs), stays. Throws StorageError when the file cannot be flushed.
Bytes drop_from_page_cache(File const& file);

}  // namespace noria

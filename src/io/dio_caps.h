/// What direct I/O (reads that bypass the page cache) needs on the file system that holds a file.
#pragma once

#include <noria/bytes.h>

#include <string>

#include "io/file.h"

namespace noria {

struct DioCaps {
  bool usable = false;
  /// Direct reads begin at multiples of these, in memory and in the file. Powers of two.
  Bytes memory_alignment = 0;
  Bytes offset_alignment = 0;
  /// How the alignments were found when usable, else why direct I/O is not: a phrase for people.
  std::string how;
};

/// Opens `file` a second time for direct reads and proves by one small read that they work; a claim is never trusted.
/// `descriptor` is that second descriptor, empty when not usable. Alignments come from statx(2), else from the block
/// device, else 4096; a read that is refused raises them to 4096 once.
/// A file system that takes O_DIRECT without meaning it (tmpfs) counts as not usable.
DioCaps probe_direct_io(File const& file, Descriptor* descriptor);

}  // namespace noria

/// Reads through io_uring: one system call starts many, and the kernel waits for them.
#pragma once

#include "io/read_engine.h"

namespace noria {

/// Null when this build or this process has no io_uring, `why` then says it; see uring_unusable_reason().
/// Throws StorageError when it is there and resources are missing.
std::unique_ptr<ReadEngine> make_uring_engine(std::size_t depth, std::string* why);

}  // namespace noria

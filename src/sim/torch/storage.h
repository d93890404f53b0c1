#pragma once

#include <c10/core/Storage.h>

namespace noria::simtorch {

/// Gives `storage` room for `bytes`, keeping what it holds. Its old memory is free for reuse once the copy has run.
/// Raises torch.OutOfMemoryError, and what the storage raises when its bytes were taken away.
void resize_storage(c10::Storage const& storage, std::size_t bytes);

}  // namespace noria::simtorch

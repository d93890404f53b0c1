#pragma once

#include <c10/core/Allocator.h>

namespace noria::simtorch {

/// Page-locked host memory. A block is reused only after the copies that PyTorch noted for it have completed.
c10::Allocator* host_allocator();

}  // namespace noria::simtorch

/// Device memory of the simulator as PyTorch asks for it.
#pragma once

#include <c10/core/Allocator.h>

#include "sim/torch/backend.h"

namespace noria::simtorch {

/// The allocator of the device type "sim"; blocks belong to the calling thread's current device and stream.
c10::Allocator* device_allocator();

/// Memory of `stream`'s device for its work. Raises torch.OutOfMemoryError.
c10::DataPtr allocate_on(sim::StreamRef stream, std::size_t bytes);

/// Makes the bytes of a CPU storage device memory, without copying: they are accounted from now on, and given back with
/// the result. Raises torch.OutOfMemoryError, and then nothing has changed.
c10::DataPtr adopt_on(sim::StreamRef stream, c10::Storage const& storage);

}  // namespace noria::simtorch

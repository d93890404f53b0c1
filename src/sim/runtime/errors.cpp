#include "sim/runtime/errors.h"

#include <fmt/format.h>

namespace noria::sim {

SimOutOfMemory::SimOutOfMemory(OutOfMemoryFigures const& figures)
    : Error(fmt::format("sim out of memory. Tried to allocate {}. Device {} has a total capacity of {} of which {} is "
                        "free. {} is allocated, and {} is reserved but unallocated.",
                        format_bytes(figures.asked), figures.device, format_bytes(figures.total),
                        format_bytes(figures.free), format_bytes(figures.allocated),
                        format_bytes(figures.reserved - figures.allocated))),
      figures_(figures) {}

}  // namespace noria::sim

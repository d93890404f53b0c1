/// Copies between raw addresses through a device's own copy kernel, for devices without a raw copy call that we know.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <noria/bytes.h>

namespace noria {

/// One side of a copy. A host address has device cpu.
struct Place {
  void* data;
  c10::Device device;
};

/// Copies in stream order on `stream`, whose device is that of the device side. Autograd, Python modes, functorch,
/// autocast and RecordFunction callbacks do not see it. With `asynchronous` it may return before the copy is done.
void raw_copy(Place destination, Place source, Bytes bytes, c10::Stream stream, bool asynchronous);

/// Sets bytes of the stream's device, in stream order.
void raw_fill(void* data, int byte, Bytes bytes, c10::Stream stream);

}  // namespace noria

#include "device/raw_copy.h"

#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <vector>

namespace noria {
namespace {

// Everything that stands above a device's own kernel: a copy of ours is not an operation of the user's program.
c10::DispatchKeySet layers_above_kernels() {
  auto const kernels = c10::DispatchKeySet(c10::DispatchKey::Dense).raw_repr() | c10::full_backend_mask;
  return {c10::DispatchKeySet::RAW, c10::DispatchKeySet(c10::DispatchKeySet::FULL).raw_repr() & ~kernels};
}

class BelowEverything {
 public:
  BelowEverything() : exclude_(layers_above_kernels()) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard exclude_;
  at::DisableRecordFunctionGuard quiet_;
};

at::Tensor bytes_at(Place place, Bytes bytes) {
  return at::for_blob(place.data, {static_cast<std::int64_t>(bytes)})
      .options(at::TensorOptions().dtype(at::kByte).device(place.device))
      .target_device(place.device)
      .make_tensor();
}

}  // namespace

void raw_copy(Place destination, Place source, Bytes bytes, c10::Stream stream, bool asynchronous) {
  BelowEverything const below;
  c10::StreamGuard const guard(stream);
  bytes_at(destination, bytes).copy_(bytes_at(source, bytes), asynchronous);
}

void raw_fill(void* data, int byte, Bytes bytes, c10::Stream stream) {
  BelowEverything const below;
  c10::StreamGuard const guard(stream);
  auto destination = bytes_at({data, stream.device()}, bytes);
  try {
    destination.fill_(byte & 0xFF);
  } catch (c10::NotImplementedError const&) {
    // A device without fill_ has copies; a bounded piece of host memory is enough.
    constexpr Bytes kPiece = Bytes{1} << 20U;
    std::vector<std::uint8_t> piece(std::min(bytes, kPiece), static_cast<std::uint8_t>(byte));
    for (Bytes at = 0; at < bytes; at += kPiece) {
      auto const count = std::min(kPiece, bytes - at);
      raw_copy({static_cast<std::byte*>(data) + at, stream.device()}, {piece.data(), c10::kCPU}, count, stream, false);
    }
  }
}

}  // namespace noria

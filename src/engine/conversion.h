/// Element types that a checkpoint and a model may differ in.
#pragma once

#include <c10/core/ScalarType.h>
#include <noria/bytes.h>

#include <optional>
#include <span>
#include <string_view>

namespace noria {

/// The element type of a safetensors dtype name, for floating-point types; nothing for others.
std::optional<c10::ScalarType> floating_type(std::string_view name);

struct Conversion {
  c10::ScalarType from = c10::ScalarType::Float;
  c10::ScalarType to = c10::ScalarType::Float;

  /// Bytes in `from` of what has `bytes` in `to`.
  [[nodiscard]] Bytes source_bytes(Bytes bytes) const;
  /// Writes as many elements as `source` holds, rounded as Tensor::to does. Neither side needs to be aligned.
  void apply(std::span<std::byte const> source, std::byte* target) const;
};

}  // namespace noria

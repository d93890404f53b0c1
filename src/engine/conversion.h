/// Element types that a checkpoint and a model may differ in.
#pragma once

#include <c10/core/ScalarType.h>
#include <noria/bytes.h>

#include <optional>
#include <span>
#include <string_view>

namespace noria {

/// What safetensors files call an element type (the format's `Dtype`); empty when they have none.
std::string_view dtype_name(c10::ScalarType type);

/// Whether tensors that a file stores as `stored` can be had as `wanted`: as they are, or by a conversion between
/// floating-point types.
bool can_become(std::string_view stored, c10::ScalarType wanted);

struct Conversion {
  c10::ScalarType from = c10::ScalarType::Float;
  c10::ScalarType to = c10::ScalarType::Float;

  /// None when `wanted` is what is stored. Throws std::invalid_argument when it cannot become that.
  static std::optional<Conversion> between(std::string_view stored, c10::ScalarType wanted);
  /// Bytes in `from` of what has `bytes` in `to`.
  [[nodiscard]] Bytes source_bytes(Bytes bytes) const;
  /// Writes as many elements as `source` holds, rounded as Tensor::to does. Neither side needs to be aligned.
  void apply(std::span<std::byte const> source, std::byte* target) const;
};

}  // namespace noria

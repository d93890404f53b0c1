#include "engine/conversion.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>
#include <noria/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace noria {
namespace {

using Named = std::pair<std::string_view, c10::ScalarType>;

constexpr std::array<Named, 13> kNames{{
    {"F64", c10::ScalarType::Double},
    {"F32", c10::ScalarType::Float},
    {"F16", c10::ScalarType::Half},
    {"BF16", c10::ScalarType::BFloat16},
    {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
    {"F8_E5M2", c10::ScalarType::Float8_e5m2},
    {"I64", c10::ScalarType::Long},
    {"I32", c10::ScalarType::Int},
    {"I16", c10::ScalarType::Short},
    {"I8", c10::ScalarType::Char},
    {"U8", c10::ScalarType::Byte},
    {"BOOL", c10::ScalarType::Bool},
    {"C64", c10::ScalarType::ComplexFloat},
}};

std::optional<c10::ScalarType> type_named(std::string_view name) {
  auto const* const found = std::ranges::find(kNames, name, &Named::first);
  return found != kNames.end() ? std::optional(found->second) : std::nullopt;
}

/// Calls `visit` with a value of the C++ type of `type`.
template <typename Visit>
void with_type(c10::ScalarType type, Visit&& visit) {
  switch (type) {
    case c10::ScalarType::Double:
      return visit(double{});
    case c10::ScalarType::Float:
      return visit(float{});
    case c10::ScalarType::Half:
      return visit(c10::Half{});
    case c10::ScalarType::BFloat16:
      return visit(c10::BFloat16{});
    case c10::ScalarType::Float8_e4m3fn:
      return visit(c10::Float8_e4m3fn{});
    case c10::ScalarType::Float8_e5m2:
      return visit(c10::Float8_e5m2{});
    default:
      NORIA_ASSERT(false, "only floating-point types are converted");
  }
}

template <typename From, typename To>
void convert(std::span<std::byte const> source, std::byte* target) {
  std::size_t const count = source.size() / sizeof(From);
  for (std::size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, source.data() + i * sizeof(From), sizeof(From));
    To out;
    if constexpr (sizeof(To) < sizeof(float)) {
      out = static_cast<To>(static_cast<float>(value));  // by way of float, as PyTorch rounds
    } else {
      out = static_cast<To>(value);
    }
    std::memcpy(target + i * sizeof(To), &out, sizeof(To));
  }
}

}  // namespace

std::string_view dtype_name(c10::ScalarType type) {
  auto const* const found = std::ranges::find(kNames, type, &Named::second);
  return found != kNames.end() ? found->first : std::string_view();
}

bool can_become(std::string_view stored, c10::ScalarType wanted) {
  if (stored == dtype_name(wanted)) {
    return true;
  }
  std::optional<c10::ScalarType> const from = type_named(stored);
  return from && c10::isFloatingType(*from) && c10::isFloatingType(wanted) && !dtype_name(wanted).empty();
}

std::optional<Conversion> Conversion::between(std::string_view stored, c10::ScalarType wanted) {
  std::optional<c10::ScalarType> const from = type_named(stored);
  if (from == wanted) {
    return std::nullopt;
  }
  if (!from || !can_become(stored, wanted)) {
    throw std::invalid_argument(std::string(stored) + " is not converted to " + c10::toString(wanted) +
                                "; only floating-point types are");
  }
  return Conversion{.from = *from, .to = wanted};
}

Bytes Conversion::source_bytes(Bytes bytes) const { return bytes / c10::elementSize(to) * c10::elementSize(from); }

void Conversion::apply(std::span<std::byte const> source, std::byte* target) const {
  with_type(from, [&](auto source_type) {
    with_type(to, [&](auto target_type) { convert<decltype(source_type), decltype(target_type)>(source, target); });
  });
}

}  // namespace noria

#include "format/dtype.h"

#include <algorithm>
#include <array>
#include <utility>

namespace noria {
namespace {

constexpr std::array<std::pair<std::string_view, unsigned>, 22> kDtypes{{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

}  // namespace

unsigned dtype_bits(std::string_view name) noexcept {
  auto const* const found = std::ranges::find(kDtypes, name, &std::pair<std::string_view, unsigned>::first);
  return found == kDtypes.end() ? 0 : found->second;
}

}  // namespace noria

#include <fmt/format.h>
#include <noria/bytes.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace noria {
namespace {

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  throw std::invalid_argument(fmt::format(
      "'{}' is not an amount of memory: {}. Write bytes as a number, or like '6GiB', '512MiB', '1.5GB', '80%'", text,
      why));
}

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_space(text.front())) {
    text.remove_prefix(1);
  }
  while (!text.empty() && is_space(text.back())) {
    text.remove_suffix(1);
  }
  return text;
}

double unit_factor(std::string_view unit, std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 12> kUnits{{{"", 1.0},
                                                                        {"b", 1.0},
                                                                        {"kb", 1e3},
                                                                        {"mb", 1e6},
                                                                        {"gb", 1e9},
                                                                        {"tb", 1e12},
                                                                        {"kib", 1024.0},
                                                                        {"mib", 1048576.0},
                                                                        {"gib", 1073741824.0},
                                                                        {"tib", 1099511627776.0},
                                                                        {"bytes", 1.0},
                                                                        {"byte", 1.0}}};
  for (auto const& [name, factor] : kUnits) {
    if (unit == name) {
      return factor;
    }
  }
  refuse(text, fmt::format("unknown unit '{}'", unit));
}

}  // namespace

Bytes ByteAmount::resolve(Bytes free_bytes) const {
  return share > 0.0 ? static_cast<Bytes>(share * static_cast<double>(free_bytes)) : bytes;
}

ByteAmount parse_byte_amount(std::string_view text) {
  std::string const compact = lower(trim(text));
  double number = 0.0;
  char const* const end = compact.data() + compact.size();
  auto const [rest, status] = std::from_chars(compact.data(), end, number);
  if (status != std::errc{} || rest == compact.data()) {
    refuse(text, "it does not begin with a number");
  }
  if (!std::isfinite(number) || number < 0.0) {
    refuse(text, "it is negative or not finite");
  }
  std::string_view const unit = trim({rest, static_cast<std::size_t>(end - rest)});
  if (unit == "%") {
    if (number <= 0.0 || number > 100.0) {
      refuse(text, "a percentage must be above 0 and at most 100");
    }
    return ByteAmount::of_free(number / 100.0);
  }
  double const value = number * unit_factor(unit, text);
  if (value >= 9.2e18) {
    refuse(text, "it is too large");
  }
  return static_cast<Bytes>(value);
}

std::string format_bytes(Bytes bytes) {
  constexpr std::array<char const*, 5> kNames{"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) {
    return fmt::format("{} B", bytes);
  }
  double value = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kNames.size()) {
    value /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kNames.at(unit));
}

}  // namespace noria

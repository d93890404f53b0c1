/// The errors a user of noria may meet. Wrong arguments are std::invalid_argument; a device that is out of memory keeps
/// the error of its own backend; everything else is one of these.
#pragma once

#include <noria/bytes.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace noria {

/// Base of all errors of noria's own.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A byte budget that cannot work. `smallest_bytes` is the smallest that does.
class BudgetError : public Error {
 public:
  BudgetError(std::string const& message, Bytes smallest_bytes) : Error(message), smallest_bytes_(smallest_bytes) {}
  [[nodiscard]] Bytes smallest_bytes() const noexcept { return smallest_bytes_; }

 private:
  Bytes smallest_bytes_;
};

/// An operation that this device does not have.
class UnsupportedOperation : public Error {
 public:
  using Error::Error;
};

/// The bytes of a weight were asked for while they are not on the device. The text begins with kEvictedPrefix.
class EvictedWeightError : public Error {
 public:
  using Error::Error;
};

/// Where PyTorch itself raises for an evicted weight, the text begins with this, then the weight's name.
inline constexpr std::string_view kEvictedPrefix = "EvictedWeightError: ";

/// Bytes on disk are not what they should be: a damaged header, a changed file, a checksum that differs.
class IntegrityError : public Error {
 public:
  using Error::Error;
};

/// Input or output failed. `error_number` is errno, 0 when the system gave none.
class StorageError : public Error {
 public:
  StorageError(std::string const& message, std::string path, int error_number)
      : Error(message), path_(std::move(path)), error_number_(error_number) {}
  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] int error_number() const noexcept { return error_number_; }

 private:
  std::string path_;
  int error_number_;
};

/// A plan that cannot be made or that contradicts itself.
class PlanError : public Error {
 public:
  using Error::Error;
};

namespace detail {
[[noreturn]] void assertion_failed(char const* condition, char const* file, int line, std::string const& message);
}  // namespace detail

}  // namespace noria

/// For users: throws `Type(message)` when `condition` is false. The message is built only then.
#define NORIA_CHECK(condition, Type, ...)                                     \
  do {                                                                        \
    if (!(condition)) [[unlikely]] { /* NOLINT(readability-simplify-boolean-expr) */ \
      throw Type(__VA_ARGS__);                                                \
    }                                                                         \
  } while (false)

/// For ourselves: a broken invariant is a noria::Error that names the place. Always on; keep the conditions cheap.
#define NORIA_ASSERT(condition, message)                                          \
  do {                                                                            \
    if (!(condition)) [[unlikely]] {                                              \
      ::noria::detail::assertion_failed(#condition, __FILE__, __LINE__, message); \
    }                                                                             \
  } while (false)

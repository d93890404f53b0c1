/// The errors a user of noria may meet. Wrong arguments are std::invalid_argument; a device that is out of memory keeps
/// the error of its own backend; everything else is one of these.
#pragma once

#include <noria/bytes.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

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

/// What exactly is wrong with bytes on disk.
enum class IntegrityCode {
  kUnspecified,
  kHeaderInvalid,     ///< a checkpoint's header is not the JSON it must be
  kHeaderTooLarge,    ///< a header longer than the limit
  kSizeOverflow,      ///< a shape whose size no file can have
  kDtypeUnknown,      ///< a tensor was asked for whose dtype this version does not know
  kTensorInvalid,     ///< a tensor's shape and dtype do not give the bytes it claims
  kOffsetsInvalid,    ///< tensors that overlap, leave holes, or end elsewhere than the file
  kIndexInvalid,      ///< a shard index that contradicts itself or its shards
  kFileTruncated,     ///< the file ended before bytes that it had when it was opened
  kFileChanged,       ///< the file is not the one that was opened
  kChecksumMismatch,  ///< bytes that differ from the checksum written with them
  kManifestInvalid,   ///< an offload folder whose manifest is damaged or describes something else
};

/// "HeaderInvalid", "FileChanged", ...: the name with which an IntegrityError's text begins.
char const* integrity_code_name(IntegrityCode code) noexcept;

/// Bytes on disk are not what they should be: a damaged header, a changed file, a checksum that differs.
class IntegrityError : public Error {
 public:
  using Error::Error;
  /// The text is "<code>: <path>: <message>".
  IntegrityError(IntegrityCode code, std::string path, std::string const& message);
  /// With a text that is complete already.
  static IntegrityError with_text(IntegrityCode code, std::string path, std::string const& text);
  [[nodiscard]] IntegrityCode code() const noexcept { return code_; }
  /// The file, empty when none is to blame.
  [[nodiscard]] std::string const& path() const noexcept { return path_; }

 private:
  IntegrityCode code_ = IntegrityCode::kUnspecified;
  std::string path_;
};

/// Input or output failed. `error_number` is errno, 0 when the system gave none; `offset` is where in the file.
class StorageError : public Error {
 public:
  StorageError(std::string const& message, std::string path, int error_number, std::optional<Bytes> offset = {})
      : Error(message), path_(std::move(path)), error_number_(error_number), offset_(offset) {}
  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] int error_number() const noexcept { return error_number_; }
  [[nodiscard]] std::optional<Bytes> offset() const noexcept { return offset_; }

 private:
  std::string path_;
  int error_number_;
  std::optional<Bytes> offset_;
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
#define NORIA_CHECK(condition, Type, ...)                                            \
  do {                                                                               \
    if (!(condition)) [[unlikely]] { /* NOLINT(readability-simplify-boolean-expr) */ \
      throw Type(__VA_ARGS__);                                                       \
    }                                                                                \
  } while (false)

/// For ourselves: a broken invariant is a noria::Error that names the place. Always on; keep the conditions cheap.
#define NORIA_ASSERT(condition, message)                                          \
  do {                                                                            \
    if (!(condition)) [[unlikely]] {                                              \
      ::noria::detail::assertion_failed(#condition, __FILE__, __LINE__, message); \
    }                                                                             \
  } while (false)

/// Why a read failed, as a value: it is found on one thread and raised on others, each time as an exception of its own.
#pragma once

#include <noria/bytes.h>
#include <noria/error.h>

#include <optional>
#include <string>

namespace noria {

struct ReadFailure {
  enum class Kind { kStorage, kIntegrity, kOther };
  Kind kind = Kind::kOther;
  std::string text{};
  std::string path{};
  int error_number = 0;                              ///< kStorage
  std::optional<Bytes> offset{};                     ///< kStorage
  IntegrityCode code = IntegrityCode::kUnspecified;  ///< kIntegrity

  /// Of the exception being handled.
  static ReadFailure current();
  static ReadFailure of(StorageError const& error);
  static ReadFailure of(IntegrityError const& error);
  /// Throws StorageError, IntegrityError or Error.
  [[noreturn]] void raise() const;
};

}  // namespace noria

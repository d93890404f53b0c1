#include <fmt/format.h>
#include <noria/error.h>

#include <cstring>

namespace noria {

char const* integrity_code_name(IntegrityCode code) noexcept {
  switch (code) {
    case IntegrityCode::kUnspecified:
      return "IntegrityError";
    case IntegrityCode::kHeaderInvalid:
      return "HeaderInvalid";
    case IntegrityCode::kHeaderTooLarge:
      return "HeaderTooLarge";
    case IntegrityCode::kSizeOverflow:
      return "SizeOverflow";
    case IntegrityCode::kDtypeUnknown:
      return "DtypeUnknown";
    case IntegrityCode::kTensorInvalid:
      return "TensorInvalid";
    case IntegrityCode::kOffsetsInvalid:
      return "OffsetsInvalid";
    case IntegrityCode::kIndexInvalid:
      return "IndexInvalid";
    case IntegrityCode::kFileTruncated:
      return "FileTruncated";
    case IntegrityCode::kFileChanged:
      return "FileChanged";
    case IntegrityCode::kChecksumMismatch:
      return "ChecksumMismatch";
    case IntegrityCode::kManifestInvalid:
      return "ManifestInvalid";
  }
  return "IntegrityError";
}

IntegrityError::IntegrityError(IntegrityCode code, std::string path, std::string const& message)
    : Error(path.empty() ? fmt::format("{}: {}", integrity_code_name(code), message)
                         : fmt::format("{}: {}: {}", integrity_code_name(code), path, message)),
      code_(code),
      path_(std::move(path)) {}

IntegrityError IntegrityError::with_text(IntegrityCode code, std::string path, std::string const& text) {
  IntegrityError error(text);
  error.code_ = code;
  error.path_ = std::move(path);
  return error;
}

}  // namespace noria

namespace noria::detail {

void assertion_failed(char const* condition, char const* file, int line, std::string const& message) {
  char const* slash = std::strrchr(file, '/');
  throw Error(fmt::format("internal error in noria, please report it: {} ({} at {}:{})", message, condition,
                          slash != nullptr ? slash + 1 : file, line));
}

}  // namespace noria::detail

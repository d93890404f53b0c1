#include "io/read_failure.h"

namespace noria {

ReadFailure ReadFailure::of(StorageError const& error) {
  return {.kind = Kind::kStorage,
          .text = error.what(),
          .path = error.path(),
          .error_number = error.error_number(),
          .offset = error.offset()};
}

ReadFailure ReadFailure::of(IntegrityError const& error) {
  return {.kind = Kind::kIntegrity, .text = error.what(), .path = error.path(), .code = error.code()};
}

ReadFailure ReadFailure::current() {
  try {
    throw;
  } catch (StorageError const& error) {
    return of(error);
  } catch (IntegrityError const& error) {
    return of(error);
  } catch (std::exception const& error) {
    return {.text = error.what()};
  }
}

void ReadFailure::raise() const {
  switch (kind) {
    case Kind::kStorage:
      throw StorageError(text, path, error_number, offset);
    case Kind::kIntegrity:
      throw IntegrityError::with_text(code, path, text);
    case Kind::kOther:
      break;
  }
  throw Error(text);
}

}  // namespace noria

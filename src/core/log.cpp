#include "core/log.h"

#include <cstdio>
#include <memory>
#include <mutex>
#include <set>

namespace noria {
namespace {

// Leaked on purpose: threads may log while the process exits.
struct LogState {
  std::mutex mutex;
  std::shared_ptr<LogSink> sink;
  std::set<std::string, std::less<>> said;
};

LogState& state() {
  static auto* const instance = new LogState;
  return *instance;
}

void to_stderr(LogLevel level, std::string_view message) {
  if (level >= LogLevel::kWarning) {
    std::fprintf(stderr, "noria: %.*s\n", static_cast<int>(message.size()), message.data());
  }
}

}  // namespace

void set_log_sink(LogSink sink) {
  std::scoped_lock const lock(state().mutex);
  state().sink = sink ? std::make_shared<LogSink>(std::move(sink)) : nullptr;
}

void log(LogLevel level, std::string_view message) noexcept {
  try {
    std::shared_ptr<LogSink> sink;
    {
      std::scoped_lock const lock(state().mutex);
      sink = state().sink;
    }
    if (sink) {
      (*sink)(level, message);  // outside the lock: a sink may take the interpreter's
    } else {
      to_stderr(level, message);
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): see the declaration
  }
}

void log_once(LogLevel level, std::string_view key, std::string_view message) noexcept {
  try {
    {
      std::scoped_lock const lock(state().mutex);
      if (!state().said.emplace(key).second) {
        return;
      }
    }
    log(level, message);
  } catch (...) {  // NOLINT(bugprone-empty-catch): see the declaration of log()
  }
}

}  // namespace noria

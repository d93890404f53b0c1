/// A small sink: a library does not choose the logger. Python routes it into `logging`, a C++ program may set its own.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace noria {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

using LogSink = std::function<void(LogLevel, std::string_view)>;

/// Replaces the sink; an empty one restores the default (warnings and errors to stderr). Thread-safe.
void set_log_sink(LogSink sink);

/// Hands the message to the sink. Never throws; a sink that throws loses its message, not the caller's work.
void log(LogLevel level, std::string_view message) noexcept;

/// As log(), but a message with this key is said once per process.
void log_once(LogLevel level, std::string_view key, std::string_view message) noexcept;

}  // namespace noria

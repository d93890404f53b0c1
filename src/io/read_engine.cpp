#include "io/read_engine.h"

#include <fmt/format.h>
#include <noria/error.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "core/log.h"
#include "io/file.h"
#include "io/threads_engine.h"
#include "io/uring_engine.h"

namespace noria {
namespace {

// Container profiles and sandboxes refuse io_uring at set-up, at the first call, or only when it is to read.
std::string probe_uring() {
  std::string why;
  try {
    std::unique_ptr<ReadEngine> const engine = make_uring_engine(4, &why);
    if (engine == nullptr) {
      return why;
    }
    std::vector<ReadCompletion> completions;
    engine->wait(0, completions);
    std::array<std::byte, 8> const written{std::byte{0x6e}, std::byte{0x6f}};
    std::array<std::byte, 8> arrived{};
    Descriptor const memory(::memfd_create("noria-probe", MFD_CLOEXEC));
    if (!memory || ::write(memory.get(), written.data(), written.size()) != ssize_t{written.size()}) {
      return fmt::format("no file to try a read on: {}", std::strerror(errno));
    }
    ReadOp const read{.descriptor = memory.get(), .offset = 0, .destination = arrived, .tag = 7};
    engine->submit({&read, 1});
    engine->wait(1, completions);
    if (completions.size() != 1 || completions[0].tag != 7) {
      return "a first read did not complete";
    }
    if (completions[0].result != std::int64_t{written.size()} || arrived != written) {
      return fmt::format("a first read gave {}: {}", completions[0].result,
                         completions[0].result < 0 ? std::strerror(static_cast<int>(-completions[0].result))
                                                   : "other bytes than the file has");
    }
  } catch (StorageError const& error) {
    return error.what();
  }
  return {};
}

}  // namespace

std::size_t default_reader_threads() noexcept {
  return std::clamp<std::size_t>(std::size_t{2} * std::thread::hardware_concurrency(), 4, 16);
}

std::string const& uring_unusable_reason() {
  static std::string const reason = probe_uring();
  return reason;
}

std::unique_ptr<ReadEngine> make_read_engine(EngineOptions const& options) {
  if (options.depth == 0 || options.depth > 128) {
    throw std::invalid_argument(fmt::format("{} reads in flight: 1 to 128 are possible", options.depth));
  }
  if (options.kind != EngineKind::kThreads) {
    std::string why = uring_unusable_reason();
    if (why.empty()) {
      if (std::unique_ptr<ReadEngine> engine = make_uring_engine(options.depth, &why)) {
        return engine;
      }
    }
    if (options.kind == EngineKind::kUring) {
      throw UnsupportedOperation(
          fmt::format("io_uring was asked for and cannot be used here ({}); use the engine 'auto' or 'threads'", why));
    }
    log_once(LogLevel::kInfo, "uring-unusable", fmt::format("reading with threads, not io_uring: {}", why));
  }
  return std::make_unique<ThreadsEngine>(options.depth,
                                         options.threads != 0 ? options.threads : default_reader_threads());
}

}  // namespace noria

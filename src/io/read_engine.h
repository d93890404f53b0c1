/// The contract of everything that can have many reads in flight at once.
#pragma once

#include <noria/bytes.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace noria {

/// One read. The destination must stay valid until this operation's completion was taken from the engine.
struct ReadOp {
  int descriptor = -1;
  Bytes offset = 0;
  std::span<std::byte> destination;
  /// Comes back with the completion; the engine does not look at it.
  std::uint64_t tag = 0;
  /// The descriptor was opened with O_DIRECT: never served from memory, so it needs no helper thread to wait in.
  bool direct = false;
};

/// What became of one operation: `result` is the number of bytes read (fewer than wanted is not an error here; 0 is the
/// end of the file), or a negative errno; -ECANCELED when it was cancelled before it began.
struct ReadCompletion {
  std::uint64_t tag = 0;
  std::int64_t result = 0;
};

/// Reads in any order and completes each operation exactly once. An engine belongs to the thread that made it: every
/// call but wake() is made there. Results are raw; continuing short reads and retrying is the caller's part (Reader).
class ReadEngine {
 public:
  ReadEngine() = default;
  ReadEngine(ReadEngine const&) = delete;
  ReadEngine& operator=(ReadEngine const&) = delete;
  /// Implementations drain first: no read touches memory after the destructor.
  virtual ~ReadEngine() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// How many operations it takes at once.
  [[nodiscard]] virtual std::size_t depth() const noexcept = 0;
  /// Submitted and not yet taken by wait() or drain().
  [[nodiscard]] virtual std::size_t in_flight() const noexcept = 0;

  /// Starts operations, in order; answers how many, fewer than offered when `depth` is reached. An operation that the
  /// system refuses completes with its errno. Throws StorageError only when the engine itself is broken.
  virtual std::size_t submit(std::span<ReadOp const> operations) = 0;
  /// Appends completions to `out`: at least `minimum` (or all in flight, if fewer), fewer only after wake().
  virtual void wait(std::size_t minimum, std::vector<ReadCompletion>& out) = 0;
  /// Asks for everything in flight to end soon. Each operation still completes, with its data or -ECANCELED.
  virtual void cancel() noexcept = 0;
  /// Waits until nothing is in flight; the completions are appended to `out`. Afterwards every buffer may be freed.
  virtual void drain(std::vector<ReadCompletion>& out) noexcept = 0;
  /// Makes the present or next wait() return. The only call that another thread may make.
  virtual void wake() noexcept = 0;
  /// Memory that many reads will go to; registering it with the system may save work. Optional; it must outlive the
  /// engine.
  virtual void announce_buffer(std::span<std::byte> /*memory*/) {}
};

enum class EngineKind { kAuto, kUring, kThreads };

struct EngineOptions {
  /// kAuto: io_uring where it works, else threads. The others fail instead of falling back.
  EngineKind kind = EngineKind::kAuto;
  std::size_t depth = 16;
  /// Of the threads engine; 0: default_reader_threads().
  std::size_t threads = 0;
};

/// min(16, 2 x cores), at least 4 (notes/disk_tier.md B3).
std::size_t default_reader_threads() noexcept;

/// Why io_uring cannot be used in this process, empty when it can: sets up a ring, does nothing once, reads for real
/// once. Asked once per process.
std::string const& uring_unusable_reason();

/// Throws UnsupportedOperation when the kind was forced and does not work here, StorageError when the system lacks
/// resources. A fallback is logged once; `name()` of the result tells what was chosen.
std::unique_ptr<ReadEngine> make_read_engine(EngineOptions const& options);

}  // namespace noria

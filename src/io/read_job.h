/// The state of one request, shared by its ticket and the reader's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "io/read_failure.h"
#include "io/reader.h"

namespace noria {

struct ReadJob {
  explicit ReadJob(ReadRequest wanted) : request(std::move(wanted)) {}

  ReadRequest const request;
  std::atomic<bool> cancelled = false;

  // Touched by the reader's thread only.
  std::size_t next_extent = 0;
  std::size_t outstanding = 0;  // reads made from extents and not yet finished
  bool begun = false;

  [[nodiscard]] bool stopped() const noexcept { return failure || cancelled.load(); }
  [[nodiscard]] bool all_issued() const noexcept { return next_extent == request.plan->extents().size(); }
  /// Keeps the first.
  void fail(ReadFailure what) noexcept {
    if (!failure) {
      failure = std::move(what);
    }
  }
  void publish();

  std::optional<ReadFailure> failure;  // written before `done`, read after it
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::chrono::steady_clock::time_point finished;  // when `done` became true
};

/// One read of a job: what to ask the engine for, and what to do with the bytes.
struct PendingRead {
  std::shared_ptr<ReadJob> job;
  ReadExtent const* extent = nullptr;
  bool direct = false;
  Bytes offset = 0;               ///< in the file; aligned when direct
  std::span<std::byte> memory{};  ///< the place itself; set from a bounce slot before the read when empty
  Bytes length = 0;               ///< what to ask for
  Bytes needed = 0;               ///< what must arrive: less than `length` only where the file ends
  bool bounced = false;
  Bytes arrived = 0;
  unsigned fruitless = 0;  ///< attempts since the last progress

  [[nodiscard]] SourceFile const& source() const { return *job->request.files[extent->file]; }
};

/// The reads that fetch `extent` past the page cache (`direct`), or through it, in file order. Direct: interior
/// straight to its place when memory and file alignment agree, edges and all else bounced in whole blocks. Buffered:
/// one read per copy, straight.
std::vector<PendingRead> reads_of(std::shared_ptr<ReadJob> const& job, ReadExtent const& extent, bool direct);

/// Copies what a bounced read brought to its places; answers how many bytes.
Bytes copy_out(PendingRead const& read);

/// The read failed with errno `error`.
ReadFailure storage_error(PendingRead const& read, int error);
/// The file ends before the read's last byte.
ReadFailure truncated(PendingRead const& read);
/// Whether it does by now, as far as the system tells.
bool ended_early(PendingRead const& read);

/// Compares every file of the job with its identity. Throws as File::check_unchanged.
void check_files(ReadJob const& job);

}  // namespace noria

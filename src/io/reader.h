/// Reads parts of files into memory, asynchronously: the one door through which weights come from a disk.
#pragma once

#include <noria/bytes.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/read_engine.h"
#include "io/read_plan.h"
#include "io/source_file.h"

namespace noria {

struct ReadJob;
class ReaderLoop;

enum class ReadMode {
  kAuto,      ///< per extent: through the page cache when 90 % of it is there, else direct; falls back
  kDirect,    ///< fails where direct reads do not work
  kBuffered,  ///< always through the page cache
};

struct ReaderOptions {
  EngineOptions engine{};
  ReadMode mode = ReadMode::kAuto;
  /// The largest extent it takes; plans are made with at most this chunk size.
  Bytes chunk_bytes = Bytes{4} << 20U;
  /// Wraps the engine, for fault injection.
  std::function<std::unique_ptr<ReadEngine>(std::unique_ptr<ReadEngine>)> wrap{};
};

struct ReadRequest {
  /// What ReadPiece::file counts.
  std::vector<std::shared_ptr<SourceFile const>> files{};
  std::shared_ptr<ReadPlan const> plan{};
  /// At least plan->destination_bytes(); must stay valid until the ticket is done. Bytes between the plan's
  /// destinations are never written.
  std::span<std::byte> destination{};
  /// When given, nothing is written to `destination`: the reader's thread calls this with the place that bytes have in
  /// the plan and the bytes themselves, which are gone afterwards. They are cut at multiples of the plan's chunk in the
  /// file. What it throws fails the request.
  std::function<void(Bytes place, std::span<std::byte const> bytes)> deliver{};
};

/// Figures since the reader was made.
struct ReaderStats {
  Bytes wanted_bytes = 0;     ///< asked for by finished requests
  Bytes read_bytes = 0;       ///< that engines delivered, over-reads for alignment included
  Bytes direct_bytes = 0;     ///< of these, past the page cache
  Bytes bounced_bytes = 0;    ///< copied from a bounce buffer to their place
  std::uint64_t reads = 0;    ///< operations completed
  std::uint64_t retries = 0;  ///< continued or repeated after a short read or an interruption
  std::uint64_t requests = 0;
  std::uint64_t failed_requests = 0;
  std::size_t most_in_flight = 0;
};

/// One request under way. Movable; destroying it cancels the request and waits until nothing touches its memory.
class ReadTicket {
 public:
  ReadTicket() = default;
  ReadTicket(std::shared_ptr<ReadJob> job, std::shared_ptr<ReaderLoop> loop);
  ReadTicket(ReadTicket&&) noexcept = default;
  ReadTicket& operator=(ReadTicket&& other) noexcept;
  ReadTicket(ReadTicket const&) = delete;
  ReadTicket& operator=(ReadTicket const&) = delete;
  ~ReadTicket();

  /// Finished, failed or cancelled: no read touches the memory any more.
  [[nodiscard]] bool done() const;
  /// When it was done. Only after done() or wait().
  [[nodiscard]] std::chrono::steady_clock::time_point finished() const;
  /// Returns when every byte is in place, else throws what went wrong: StorageError with path, errno and offset,
  /// IntegrityError (FileTruncated, FileChanged), or Error when it was cancelled or the reader closed. The memory then
  /// holds nothing of use. May be called again, from any thread.
  void wait() const;
  /// Returns when done(), however it ended. In a forked child, where nothing is read any more, at once.
  void wait_until_done() const noexcept;
  /// Starts no more reads for this request and returns at once; done() follows when those in flight have ended.
  void cancel() const noexcept;

 private:
  void finish() noexcept;

  std::shared_ptr<ReadJob> job_;
  std::shared_ptr<ReaderLoop> loop_;
};

/// One thread that keeps up to `engine.depth` reads in flight, in the order of the requests. Reads go straight to their
/// place where alignment allows, else through bounce buffers of its own (depth x chunk, touched when first needed).
/// All members may be called from any thread.
class Reader {
 public:
  /// Throws as make_read_engine does.
  explicit Reader(ReaderOptions options = {});
  /// Cancels what is under way (its tickets then throw) and waits for reads in flight.
  ~Reader();
  Reader(Reader const&) = delete;
  Reader& operator=(Reader const&) = delete;

  /// Queues the request. Each file is compared with its identity before its first and after its last read.
  /// Throws std::invalid_argument when the request does not fit its plan, UnsupportedOperation when direct reads are
  /// forced and a file has none, Error in a forked child (threads do not survive a fork).
  ReadTicket start(ReadRequest request);

  [[nodiscard]] ReaderStats stats() const;
  /// "uring" or "threads", and the reason when it is not what one would wish.
  [[nodiscard]] std::string const& engine_name() const noexcept;
  [[nodiscard]] ReaderOptions const& options() const noexcept;

 private:
  std::shared_ptr<ReaderLoop> loop_;
};

}  // namespace noria

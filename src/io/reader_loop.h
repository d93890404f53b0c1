/// The thread inside a Reader. Its owners leak it in a forked child, where the thread is not.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "io/aligned_buffer.h"
#include "io/read_job.h"

namespace noria {

class ReaderLoop {
 public:
  explicit ReaderLoop(ReaderOptions options);
  ~ReaderLoop();
  ReaderLoop(ReaderLoop const&) = delete;
  ReaderLoop& operator=(ReaderLoop const&) = delete;

  void add(std::shared_ptr<ReadJob> job);
  /// Something about a job changed that the thread should look at.
  void nudge() noexcept;
  /// Stops the thread: everything under way fails with "closed". Idempotent.
  void close() noexcept;
  [[nodiscard]] bool in_forked_child() const noexcept;

  [[nodiscard]] ReaderStats stats() const;
  [[nodiscard]] std::string const& engine_name() const noexcept { return engine_name_; }
  [[nodiscard]] ReaderOptions const& options() const noexcept { return options_; }

 private:
  void run();
  bool take_new_jobs();
  void begin(ReadJob& job) noexcept;
  void expand();
  bool choose_direct(ReadJob const& job, ReadExtent const& extent) const;
  void fill();
  void handle(ReadCompletion const& completion);
  void succeed(PendingRead& read, Bytes got);
  void retry(std::size_t index);
  bool redirect(PendingRead& read, int error) const;
  void finish_read(std::size_t index);
  void retire();
  void shut_down() noexcept;
  void give_bounce(PendingRead& read);

  ReaderOptions options_;
  pid_t owner_;
  std::string engine_name_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<ReadJob>> incoming_;
  bool closing_ = false;
  std::optional<ReadFailure> broken_;  // why the thread ended by itself
  ReadEngine* wakeable_ = nullptr;
  ReaderStats stats_;

  // The rest belongs to the thread.
  std::unique_ptr<ReadEngine> engine_;
  AlignedBuffer bounce_;
  bool bounce_announced_ = false;
  std::vector<std::size_t> free_bounce_;  // slot numbers
  std::deque<std::shared_ptr<ReadJob>> jobs_;
  std::vector<PendingRead> reads_;  // by tag
  std::vector<std::size_t> free_reads_;
  std::deque<std::size_t> ready_;  // to be submitted, in order
  std::vector<ReadCompletion> completions_;

  std::thread thread_;
};

}  // namespace noria

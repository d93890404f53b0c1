/// Reads by a pool of threads: works everywhere, and copies cached data on several cores.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "io/read_engine.h"

namespace noria {

/// One queue for all files, so that a single large file keeps every thread busy.
class ThreadsEngine final : public ReadEngine {
 public:
  /// Throws StorageError when not even one thread can be started.
  ThreadsEngine(std::size_t depth, std::size_t threads);
  ~ThreadsEngine() override;

  [[nodiscard]] std::string_view name() const noexcept override { return "threads"; }
  [[nodiscard]] std::size_t depth() const noexcept override { return depth_; }
  [[nodiscard]] std::size_t in_flight() const noexcept override { return in_flight_; }
  std::size_t submit(std::span<ReadOp const> operations) override;
  void wait(std::size_t minimum, std::vector<ReadCompletion>& out) override;
  void cancel() noexcept override;
  void drain(std::vector<ReadCompletion>& out) noexcept override;
  void wake() noexcept override;

 private:
  void work();
  void take_completions(std::vector<ReadCompletion>& out);

  std::size_t const depth_;
  std::size_t in_flight_ = 0;  // touched by the owner only
  std::mutex mutex_;
  std::condition_variable work_there_;
  std::condition_variable completion_there_;
  std::deque<ReadOp> queue_;
  std::vector<ReadCompletion> completed_;
  bool woken_ = false;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace noria

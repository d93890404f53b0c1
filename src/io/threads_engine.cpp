#include "io/threads_engine.h"

#include <fmt/format.h>
#include <noria/error.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace noria {

ThreadsEngine::ThreadsEngine(std::size_t depth, std::size_t threads) : depth_(depth) {
  completed_.reserve(depth);
  workers_.reserve(threads);
  try {
    for (std::size_t i = 0; i < threads; ++i) {
      workers_.emplace_back([this] { work(); });
    }
  } catch (std::system_error const& error) {
    // A limit on threads is no reason to fail as long as one reads.
    if (workers_.empty()) {
      throw StorageError(fmt::format("cannot start a reader thread: {}", error.what()), "", error.code().value());
    }
  }
}

ThreadsEngine::~ThreadsEngine() {
  cancel();
  {
    std::lock_guard const lock(mutex_);
    stopping_ = true;
  }
  work_there_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

std::size_t ThreadsEngine::submit(std::span<ReadOp const> operations) {
  std::size_t const accepted = std::min(operations.size(), depth_ - in_flight_);
  {
    std::lock_guard const lock(mutex_);
    queue_.insert(queue_.end(), operations.begin(), operations.begin() + static_cast<std::ptrdiff_t>(accepted));
  }
  in_flight_ += accepted;
  if (accepted == 1) {
    work_there_.notify_one();
  } else if (accepted != 0) {
    work_there_.notify_all();
  }
  return accepted;
}

void ThreadsEngine::wait(std::size_t minimum, std::vector<ReadCompletion>& out) {
  std::size_t const wanted = std::min(minimum, in_flight_);
  std::unique_lock lock(mutex_);
  completion_there_.wait(lock, [&] { return completed_.size() >= wanted || woken_; });
  woken_ = false;
  take_completions(out);
}

void ThreadsEngine::cancel() noexcept {
  std::lock_guard const lock(mutex_);
  for (ReadOp const& operation : queue_) {
    completed_.push_back({.tag = operation.tag, .result = -ECANCELED});
  }
  queue_.clear();
  completion_there_.notify_all();
}

void ThreadsEngine::drain(std::vector<ReadCompletion>& out) noexcept {
  std::unique_lock lock(mutex_);
  completion_there_.wait(lock, [&] { return completed_.size() == in_flight_; });
  take_completions(out);
}

void ThreadsEngine::wake() noexcept {
  {
    std::lock_guard const lock(mutex_);
    woken_ = true;
  }
  completion_there_.notify_all();
}

void ThreadsEngine::take_completions(std::vector<ReadCompletion>& out) {
  in_flight_ -= completed_.size();
  out.insert(out.end(), completed_.begin(), completed_.end());
  completed_.clear();
}

void ThreadsEngine::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_there_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    ReadOp const operation = queue_.front();
    queue_.pop_front();
    lock.unlock();
    ssize_t got = 0;
    do {
      got = ::pread(operation.descriptor, operation.destination.data(), operation.destination.size(),
                    static_cast<off_t>(operation.offset));
    } while (got < 0 && errno == EINTR);
    std::int64_t const result = got < 0 ? -std::int64_t{errno} : std::int64_t{got};
    lock.lock();
    completed_.push_back({.tag = operation.tag, .result = result});
    completion_there_.notify_one();
  }
}

}  // namespace noria

#include "io/reader_loop.h"

#include <fmt/format.h>
#include <noria/error.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <utility>

#include "io/page_cache.h"

namespace noria {
namespace {

// From this share of an extent in the page cache on, copying from there beats the disk (notes/disk_tier.md B3).
constexpr double kCachedEnough = 0.9;
// A read that brings nothing this many times in a row will not bring anything.
constexpr unsigned kMostFruitless = 64;

}  // namespace

ReaderLoop::ReaderLoop(ReaderOptions options) : options_(std::move(options)), owner_(::getpid()) {
  std::promise<void> started;
  std::future<void> ready = started.get_future();
  // The engine is made by the thread that uses it.
  thread_ = std::thread([this, started = std::move(started)]() mutable {
    try {
      engine_ = make_read_engine(options_.engine);
      if (options_.wrap) {
        engine_ = options_.wrap(std::move(engine_));
      }
      bounce_ = AlignedBuffer(engine_->depth() * options_.chunk_bytes);
      for (std::size_t i = engine_->depth(); i-- > 0;) {
        free_bounce_.push_back(i);
      }
      engine_name_ = engine_->name();
      wakeable_ = engine_.get();
    } catch (...) {
      engine_.reset();
      started.set_exception(std::current_exception());
      return;
    }
    started.set_value();
    run();
  });
  try {
    ready.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

ReaderLoop::~ReaderLoop() { close(); }

bool ReaderLoop::in_forked_child() const noexcept { return ::getpid() != owner_; }

void ReaderLoop::add(std::shared_ptr<ReadJob> job) {
  {
    std::lock_guard const lock(mutex_);
    if (std::optional<ReadFailure> const& broken = broken_) {
      broken->raise();
    }
    NORIA_CHECK(!closing_, Error, "the reader was closed");
    incoming_.push_back(std::move(job));
  }
  nudge();
}

void ReaderLoop::nudge() noexcept {
  std::lock_guard const lock(mutex_);
  changed_.notify_all();
  if (wakeable_ != nullptr) {
    wakeable_->wake();
  }
}

void ReaderLoop::close() noexcept {
  {
    std::lock_guard const lock(mutex_);
    if (std::exchange(closing_, true)) {
      return;
    }
  }
  nudge();
  thread_.join();
}

ReaderStats ReaderLoop::stats() const {
  std::lock_guard const lock(mutex_);
  return stats_;
}

void ReaderLoop::run() {
  try {
    while (take_new_jobs()) {
      fill();
      if (engine_->in_flight() != 0) {
        completions_.clear();
        engine_->wait(1, completions_);
        for (ReadCompletion const& completion : completions_) {
          handle(completion);
        }
      }
      retire();
    }
  } catch (...) {
    std::lock_guard const lock(mutex_);
    broken_ = ReadFailure::current();
  }
  shut_down();
}

// Sleeps while there is nothing to do; false when the reader closes.
bool ReaderLoop::take_new_jobs() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closing_ || !incoming_.empty() || !jobs_.empty() || engine_->in_flight() != 0; });
  jobs_.insert(jobs_.end(), incoming_.begin(), incoming_.end());
  incoming_.clear();
  return !closing_;
}

void ReaderLoop::begin(ReadJob& job) noexcept {
  job.begun = true;
  try {
    check_files(job);
  } catch (...) {
    job.fail(ReadFailure::current());
  }
}

// Turns the next extent of the first job that has one into reads.
void ReaderLoop::expand() {
  for (std::shared_ptr<ReadJob> const& job : jobs_) {
    if (!job->begun && !job->stopped()) {
      begin(*job);
    }
    if (job->stopped() || job->all_issued()) {
      continue;
    }
    ReadExtent const& extent = job->request.plan->extents()[job->next_extent++];
    for (PendingRead& read : reads_of(job, extent, choose_direct(*job, extent))) {
      std::size_t index = reads_.size();
      if (free_reads_.empty()) {
        reads_.emplace_back();
      } else {
        index = free_reads_.back();
        free_reads_.pop_back();
      }
      reads_[index] = std::move(read);
      ready_.push_back(index);
      ++job->outstanding;
    }
    return;
  }
}

bool ReaderLoop::choose_direct(ReadJob const& job, ReadExtent const& extent) const {
  SourceFile const& source = *job.request.files[extent.file];
  switch (options_.mode) {
    case ReadMode::kDirect:
      return true;
    case ReadMode::kBuffered:
      return false;
    case ReadMode::kAuto:
      break;
  }
  if (!source.direct_usable()) {
    return false;
  }
  Bytes const cached = cached_bytes(source.file(), extent.begin, extent.bytes()).value_or(0);
  return static_cast<double>(cached) < kCachedEnough * static_cast<double>(extent.bytes());
}

void ReaderLoop::give_bounce(PendingRead& read) {
  if (!bounce_announced_) {
    engine_->announce_buffer(bounce_.bytes());
    bounce_announced_ = true;
  }
  NORIA_ASSERT(!free_bounce_.empty(), "there is a bounce buffer for every read in flight");
  read.memory = bounce_.bytes().subspan(free_bounce_.back() * options_.chunk_bytes, read.length);
  free_bounce_.pop_back();
}

// Submits as much as the engine takes.
void ReaderLoop::fill() {
  while (engine_->in_flight() < engine_->depth()) {
    if (ready_.empty()) {
      expand();
    }
    if (ready_.empty()) {
      return;
    }
    std::size_t const index = ready_.front();
    ready_.pop_front();
    PendingRead& read = reads_[index];
    if (read.job->stopped()) {
      finish_read(index);
      continue;
    }
    if (read.bounced && read.memory.empty()) {
      give_bounce(read);
    }
    SourceFile const& source = read.source();
    ReadOp const operation{.descriptor = read.direct ? source.direct_descriptor() : source.file().descriptor(),
                           .offset = read.offset + read.arrived,
                           .destination = read.memory.subspan(read.arrived, read.length - read.arrived),
                           .tag = index,
                           .direct = read.direct};
    std::size_t const accepted = engine_->submit({&operation, 1});
    NORIA_ASSERT(accepted == 1, "an engine takes operations up to its depth");
    std::lock_guard const lock(mutex_);
    stats_.most_in_flight = std::max(stats_.most_in_flight, engine_->in_flight());
  }
}

void ReaderLoop::handle(ReadCompletion const& completion) {
  std::size_t const index = completion.tag;
  PendingRead& read = reads_[index];
  if (read.job->stopped()) {
    finish_read(index);
    return;
  }
  if (completion.result > 0) {
    succeed(read, static_cast<Bytes>(completion.result));
    read.arrived >= read.needed ? finish_read(index) : retry(index);
    return;
  }
  int const error = static_cast<int>(-completion.result);
  switch (error) {
    case 0:
      read.job->fail(truncated(read));
      finish_read(index);
      return;
    case EINTR:
    case EAGAIN:
      if (++read.fruitless < kMostFruitless) {
        retry(index);
        return;
      }
      break;
    default:
      if (redirect(read, error)) {
        retry(index);
        return;
      }
      break;
  }
  read.job->fail(storage_error(read, error));
  finish_read(index);
}

// Counts what arrived. A direct read that stopped inside a block is continued from that block's beginning.
void ReaderLoop::succeed(PendingRead& read, Bytes got) {
  {
    std::lock_guard const lock(mutex_);
    ++stats_.reads;
    stats_.read_bytes += got;
    stats_.direct_bytes += read.direct ? got : 0;
  }
  Bytes const total = read.arrived + got;
  if (total >= read.needed) {
    read.arrived = read.needed;
    return;
  }
  Bytes kept = total;
  if (read.direct) {
    kept -= kept % std::max(read.source().caps().offset_alignment, read.source().caps().memory_alignment);
  }
  read.fruitless = kept > read.arrived ? 0 : read.fruitless + 1;
  read.arrived = std::max(read.arrived, kept);
}

void ReaderLoop::retry(std::size_t index) {
  {
    std::lock_guard const lock(mutex_);
    ++stats_.retries;
  }
  PendingRead& read = reads_[index];
  if (read.fruitless != 0 && ended_early(read)) {
    read.job->fail(truncated(read));
  } else if (read.fruitless >= kMostFruitless) {
    if (read.direct && options_.mode == ReadMode::kAuto) {
      // This place of the file gives no whole block; through the page cache it need not.
      read.direct = false;
      read.fruitless = 0;
    } else {
      read.job->fail(storage_error(read, EIO));
    }
  }
  if (read.job->stopped()) {
    finish_read(index);
  } else {
    ready_.push_front(index);
  }
}

// A read that the system refuses in this form, though another form may do.
bool ReaderLoop::redirect(PendingRead& read, int error) const {
  if (error == EFAULT && !read.bounced) {
    // Memory that the kernel cannot pin (of a device driver, say): ours it can.
    read.bounced = true;
    read.memory = {};
    read.arrived = 0;
    return true;
  }
  if (error == EINVAL && read.direct && options_.mode == ReadMode::kAuto) {
    read.source().refuse_direct(std::strerror(error));
    read.direct = false;
    return true;
  }
  return false;
}

void ReaderLoop::finish_read(std::size_t index) {
  PendingRead read = std::exchange(reads_[index], {});
  free_reads_.push_back(index);
  Bytes copied = 0;
  if (read.bounced && !read.memory.empty()) {
    if (read.arrived == read.needed && !read.job->stopped()) {
      try {
        copied = copy_out(read);
      } catch (...) {
        read.job->fail(ReadFailure::current());
      }
    }
    free_bounce_.push_back(static_cast<std::size_t>(read.memory.data() - bounce_.data()) / options_.chunk_bytes);
  }
  --read.job->outstanding;
  std::lock_guard const lock(mutex_);
  stats_.bounced_bytes += copied;
}

// Publishes the jobs that nothing is in flight for any more.
void ReaderLoop::retire() {
  std::erase_if(jobs_, [&](std::shared_ptr<ReadJob> const& job) {
    if (job->outstanding != 0 || !(job->stopped() || job->all_issued())) {
      return false;
    }
    if (!job->stopped()) {
      try {
        check_files(*job);
      } catch (...) {
        job->fail(ReadFailure::current());
      }
    }
    bool const complete = !job->stopped();
    if (!complete) {
      job->fail({.text = "the read was cancelled"});
    }
    {
      std::lock_guard const lock(mutex_);
      ++stats_.requests;
      stats_.failed_requests += complete ? 0 : 1;
      stats_.wanted_bytes += complete ? job->request.plan->wanted_bytes() : 0;
    }
    job->publish();
    return true;
  });
}

void ReaderLoop::shut_down() noexcept {
  engine_->cancel();
  completions_.clear();
  engine_->drain(completions_);
  ReadFailure reason;
  {
    std::lock_guard const lock(mutex_);
    wakeable_ = nullptr;
    reason = broken_.value_or(ReadFailure{.text = "the reader was closed before the read ended"});
    jobs_.insert(jobs_.end(), incoming_.begin(), incoming_.end());
    incoming_.clear();
  }
  engine_.reset();
  reads_.clear();
  for (std::shared_ptr<ReadJob> const& job : jobs_) {
    job->fail(reason);
    job->publish();
  }
  jobs_.clear();
}

}  // namespace noria

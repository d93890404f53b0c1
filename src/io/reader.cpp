#include "io/reader.h"

#include <fmt/format.h>
#include <noria/error.h>

#include <new>
#include <stdexcept>
#include <utility>

#include "io/read_job.h"
#include "io/reader_loop.h"

namespace noria {
namespace {

template <typename T>
void leak(std::shared_ptr<T> kept) noexcept {
  [[maybe_unused]] auto* const forgotten = new (std::nothrow) std::shared_ptr<T>(std::move(kept));
}

}  // namespace

ReadTicket::ReadTicket(std::shared_ptr<ReadJob> job, std::shared_ptr<ReaderLoop> loop)
    : job_(std::move(job)), loop_(std::move(loop)) {}

ReadTicket& ReadTicket::operator=(ReadTicket&& other) noexcept {
  if (this != &other) {
    finish();
    job_ = std::move(other.job_);
    loop_ = std::move(other.loop_);
  }
  return *this;
}

ReadTicket::~ReadTicket() { finish(); }

void ReadTicket::finish() noexcept {
  if (job_ == nullptr) {
    return;
  }
  if (loop_->in_forked_child()) {
    // The thread that would finish it is not here, and destroying what it waits on would wait for it.
    leak(std::move(job_));
    leak(std::move(loop_));
    return;
  }
  if (done()) {
    return;
  }
  cancel();
  std::unique_lock lock(job_->mutex);
  job_->changed.wait(lock, [&] { return job_->done; });
}

std::chrono::steady_clock::time_point ReadTicket::finished() const {
  std::lock_guard const lock(job_->mutex);
  return job_->finished;
}

bool ReadTicket::done() const {
  if (job_ == nullptr) {
    return true;
  }
  std::lock_guard const lock(job_->mutex);
  return job_->done;
}

void ReadTicket::wait() const {
  if (job_ == nullptr) {
    return;
  }
  NORIA_CHECK(!loop_->in_forked_child(), Error, "a read started before fork() cannot be waited for in the child");
  std::unique_lock lock(job_->mutex);
  job_->changed.wait(lock, [&] { return job_->done; });
  if (std::optional<ReadFailure> const& failure = job_->failure) {
    failure->raise();
  }
}

void ReadTicket::wait_until_done() const noexcept {
  if (job_ != nullptr && !loop_->in_forked_child()) {
    std::unique_lock lock(job_->mutex);
    job_->changed.wait(lock, [&] { return job_->done; });
  }
}

void ReadTicket::cancel() const noexcept {
  if (job_ != nullptr && !job_->cancelled.exchange(true)) {
    loop_->nudge();
  }
}

Reader::Reader(ReaderOptions options) : loop_(std::make_shared<ReaderLoop>(std::move(options))) {}

// The loop itself may live longer, in tickets.
Reader::~Reader() {
  if (loop_->in_forked_child()) {
    leak(std::move(loop_));
    return;
  }
  loop_->close();
}

ReadTicket Reader::start(ReadRequest request) {
  NORIA_CHECK(!loop_->in_forked_child(), Error,
              "a reader made before fork() cannot read in the child; make one there (or start workers by spawn)");
  ReadPlan const& plan = *request.plan;
  if (!request.deliver && plan.destination_bytes() > request.destination.size()) {
    throw std::invalid_argument(fmt::format("the plan fills {} bytes and the memory has {}", plan.destination_bytes(),
                                            request.destination.size()));
  }
  if (plan.chunk_bytes() > options().chunk_bytes) {
    throw std::invalid_argument(fmt::format("the plan reads in chunks of {} bytes and this reader takes at most {}",
                                            plan.chunk_bytes(), options().chunk_bytes));
  }
  for (ReadExtent const& extent : plan.extents()) {
    if (extent.file >= request.files.size()) {
      throw std::invalid_argument(
          fmt::format("the plan reads file {} and the request has {}", extent.file, request.files.size()));
    }
    SourceFile const& source = *request.files[extent.file];
    if (extent.end > source.file().size()) {
      throw std::invalid_argument(fmt::format("the plan reads '{}' up to {} and it ends at {}", source.file().path(),
                                              extent.end, source.file().size()));
    }
    if (options().mode == ReadMode::kDirect && !source.direct_usable()) {
      throw UnsupportedOperation(
          fmt::format("direct reads were asked for and '{}' has none ({}); use the mode 'auto' or 'buffered'",
                      source.file().path(), source.caps().usable ? "a direct read was refused" : source.caps().how));
    }
  }
  auto job = std::make_shared<ReadJob>(std::move(request));
  loop_->add(job);
  return {std::move(job), loop_};
}

ReaderStats Reader::stats() const { return loop_->stats(); }
std::string const& Reader::engine_name() const noexcept { return loop_->engine_name(); }
ReaderOptions const& Reader::options() const noexcept { return loop_->options(); }

}  // namespace noria

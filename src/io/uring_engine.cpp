#include "io/uring_engine.h"

#include <fmt/format.h>
#include <noria/error.h>

#ifdef NORIA_HAVE_URING

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "core/log.h"
#include "io/file.h"

namespace noria {
namespace {

// Completions of our own operations; all others carry the index of their slot.
constexpr std::uint64_t kWakeTag = ~std::uint64_t{0};
constexpr std::uint64_t kCancelTag = kWakeTag - 1;
// One poll for wake() and one cancellation may be in flight beside the reads.
constexpr std::size_t kOwnEntries = 2;
constexpr std::size_t kSmallestDepth = 4;
// The kernel's limit for one registered buffer.
constexpr Bytes kLargestFixedBuffer = Bytes{1} << 30U;

// 0 or a negative errno. Newer flags first: completions then run in our thread only when we ask for them.
int set_up(unsigned entries, io_uring* ring) {
  for (unsigned const flags : {unsigned{IORING_SETUP_SINGLE_ISSUER} | IORING_SETUP_DEFER_TASKRUN, 0U}) {
    io_uring_params parameters{};
    parameters.flags = flags;
    int const result = ::io_uring_queue_init_params(entries, ring, &parameters);
    if (result != -EINVAL || flags == 0) {
      return result;
    }
  }
  return -EINVAL;
}

class UringEngine final : public ReadEngine {
 public:
  UringEngine(io_uring ring, std::size_t depth, Descriptor wake)
      : ring_(ring), wake_(std::move(wake)), tags_(depth), free_slots_(depth) {
    for (std::size_t i = 0; i < depth; ++i) {
      free_slots_[i] = depth - 1 - i;
    }
  }

  ~UringEngine() override {
    cancel();
    std::vector<ReadCompletion> dropped;
    drain(dropped);
    ::io_uring_queue_exit(&ring_);
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "uring"; }
  [[nodiscard]] std::size_t depth() const noexcept override { return tags_.size(); }
  [[nodiscard]] std::size_t in_flight() const noexcept override { return tags_.size() - free_slots_.size(); }

  std::size_t submit(std::span<ReadOp const> operations) override {
    std::size_t const accepted = std::min(operations.size(), free_slots_.size());
    for (ReadOp const& operation : operations.first(accepted)) {
      prepare(operation);
    }
    flush();
    return accepted;
  }

  void wait(std::size_t minimum, std::vector<ReadCompletion>& out) override {
    arm_wake();
    flush();
    std::size_t const before = out.size();
    std::size_t const wanted = std::min(minimum, in_flight());
    if (!broken_) {
      ::io_uring_get_events(&ring_);
    }
    reap(out);
    while (out.size() - before < wanted && !std::exchange(woken_, false)) {
      wait_for_one();
      reap(out);
    }
    woken_ = false;
  }

  void cancel() noexcept override {
    if (in_flight() == 0 || cancelling_ || broken_) {
      return;
    }
    if (io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_); entry != nullptr) {
      // Takes the wake-up poll with it, which is armed again at the next wait().
      ::io_uring_prep_cancel64(entry, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
      entry->user_data = kCancelTag;
      cancelling_ = true;
      ::io_uring_submit(&ring_);
    }
  }

  void drain(std::vector<ReadCompletion>& out) noexcept override {
    flush();
    reap(out);
    while (in_flight() != 0) {
      wait_for_one();
      reap(out);
    }
  }

  void wake() noexcept override {
    std::uint64_t const one = 1;
    [[maybe_unused]] ssize_t const written = ::write(wake_.get(), &one, sizeof one);
  }

  void announce_buffer(std::span<std::byte> memory) override {
    std::vector<iovec> parts;
    for (; !memory.empty(); memory = memory.subspan(parts.back().iov_len)) {
      parts.push_back({.iov_base = memory.data(), .iov_len = std::min<Bytes>(memory.size(), kLargestFixedBuffer)});
    }
    int const result = ::io_uring_register_buffers(&ring_, parts.data(), static_cast<unsigned>(parts.size()));
    if (result == 0) {
      fixed_ = std::move(parts);
    } else {
      log_once(LogLevel::kInfo, "uring-fixed-buffers",
               fmt::format("buffers are not registered with io_uring ({}); reads pin them one by one. A higher limit "
                           "of locked memory (ulimit -l) allows it",
                           std::strerror(-result)));
    }
  }

 private:
  void prepare(ReadOp const& operation) {
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
    NORIA_ASSERT(entry != nullptr, "the submission queue has an entry for every slot");
    auto* const memory = operation.destination.data();
    auto const length = static_cast<unsigned>(operation.destination.size());
    auto const fixed = std::ranges::find_if(fixed_, [&](iovec const& part) {
      auto const* const base = static_cast<std::byte const*>(part.iov_base);
      return memory >= base && memory + length <= base + part.iov_len;
    });
    if (fixed != fixed_.end()) {
      ::io_uring_prep_read_fixed(entry, operation.descriptor, memory, length, operation.offset,
                                 static_cast<int>(fixed - fixed_.begin()));
    } else {
      ::io_uring_prep_read(entry, operation.descriptor, memory, length, operation.offset);
    }
    if (!operation.direct) {
      // A cached read would be copied inside our own system call, one after the other; workers copy side by side.
      entry->flags |= IOSQE_ASYNC;
    }
    std::size_t const slot = free_slots_.back();
    free_slots_.pop_back();
    tags_[slot] = operation.tag;
    entry->user_data = slot;
  }

  void arm_wake() {
    if (armed_ || broken_) {
      return;
    }
    if (io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_); entry != nullptr) {
      ::io_uring_prep_poll_add(entry, wake_.get(), POLLIN);
      entry->user_data = kWakeTag;
      armed_ = true;
    }
  }

  // Hands everything prepared to the kernel. Entries that it will not take complete with the error instead, and the
  // ring takes no more: the entries still stand in its queue.
  void flush() noexcept {
    while (!broken_ && ::io_uring_sq_ready(&ring_) != 0) {
      int const result = ::io_uring_submit(&ring_);
      if (result >= 0 || result == -EINTR) {
        continue;
      }
      if (result == -EAGAIN || result == -EBUSY) {
        // The kernel wants completions taken, or memory back, first.
        if (in_flight() > ::io_uring_sq_ready(&ring_)) {
          wait_for_one();
          reap(early_);
          continue;
        }
      }
      break_ring(-result);
    }
  }

  void break_ring(int error) noexcept {
    broken_ = true;
    unsigned const left = ::io_uring_sq_ready(&ring_);
    for (unsigned i = 0; i < left; ++i) {
      io_uring_sqe const& entry = ring_.sq.sqes[(ring_.sq.sqe_head + i) & ring_.sq.ring_mask];
      if (entry.user_data != kWakeTag && entry.user_data != kCancelTag) {
        finish(entry.user_data, -error, early_);
      }
    }
  }

  void wait_for_one() noexcept {
    if (!early_.empty()) {
      return;
    }
    io_uring_cqe* ignored = nullptr;
    ::io_uring_wait_cqe(&ring_, &ignored);  // an interruption is no harm: the callers loop
  }

  // Takes every completion that is there: an error is looked at only after the queue has moved on.
  void reap(std::vector<ReadCompletion>& out) noexcept {
    if (&out != &early_) {
      out.insert(out.end(), early_.begin(), early_.end());
      early_.clear();
    }
    unsigned head = 0;
    unsigned count = 0;
    io_uring_cqe* completion = nullptr;
    io_uring_for_each_cqe(&ring_, head, completion) {
      ++count;
      if (completion->user_data == kWakeTag) {
        armed_ = false;
        if (completion->res > 0) {
          std::uint64_t calls = 0;
          [[maybe_unused]] ssize_t const got = ::read(wake_.get(), &calls, sizeof calls);
          woken_ = true;
        }
      } else if (completion->user_data == kCancelTag) {
        cancelling_ = false;
      } else {
        finish(completion->user_data, completion->res, out);
      }
    }
    ::io_uring_cq_advance(&ring_, count);
  }

  void finish(std::uint64_t slot, std::int64_t result, std::vector<ReadCompletion>& out) noexcept {
    out.push_back({.tag = tags_[slot], .result = result});
    free_slots_.push_back(slot);
  }

  io_uring ring_;
  Descriptor wake_;
  std::vector<std::uint64_t> tags_;  // by slot
  std::vector<std::size_t> free_slots_;
  std::vector<iovec> fixed_;
  std::vector<ReadCompletion> early_;  // taken while making room, not yet handed out
  bool armed_ = false;
  bool woken_ = false;
  bool cancelling_ = false;
  bool broken_ = false;
};

}  // namespace

std::unique_ptr<ReadEngine> make_uring_engine(std::size_t depth, std::string* why) {
  io_uring ring{};
  int result = 0;
  for (;; depth = std::max(kSmallestDepth, depth / 2)) {
    result = set_up(static_cast<unsigned>(depth + kOwnEntries), &ring);
    if (result != -ENOMEM || depth <= kSmallestDepth) {
      break;
    }
  }
  if (result == -EPERM || result == -ENOSYS || result == -EACCES || result == -ENOMEM || result == -EINVAL) {
    *why = fmt::format("io_uring_setup is refused: {}", std::strerror(-result));
    return nullptr;
  }
  if (result < 0) {
    throw StorageError(fmt::format("io_uring_setup failed: {}", std::strerror(-result)), "", -result);
  }
  Descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) {
    int const error = errno;
    ::io_uring_queue_exit(&ring);
    throw StorageError(fmt::format("eventfd failed: {}", std::strerror(error)), "", error);
  }
  return std::make_unique<UringEngine>(ring, depth, std::move(wake));
}

}  // namespace noria

#else

namespace noria {

std::unique_ptr<ReadEngine> make_uring_engine(std::size_t /*depth*/, std::string* why) {
  *why = "this build has no liburing";
  return nullptr;
}

}  // namespace noria

#endif

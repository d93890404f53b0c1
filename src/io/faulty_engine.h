/// An engine that misbehaves as disks and kernels do, on schedule: wraps a real one. Nothing in it waits for a clock:
/// a delay counts calls of wait().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "io/read_engine.h"

namespace noria {

struct Fault {
  enum class Kind {
    kShort,      ///< at most `value` bytes are reported, or, when negative, that many fewer; at least 1
    kError,      ///< fails with errno `value` without reading
    kEndOfFile,  ///< reports 0, as if the file had been truncated
    kDelay,      ///< comes `value` steps late
  };
  Kind kind = Kind::kError;
  std::int64_t value = 0;
  /// Strikes the operation with this number (1 is the first ever submitted) ...
  std::uint64_t first = 1;
  /// ... and then every `every`-th after it; 0: only once.
  std::uint64_t every = 0;
};

struct FaultScript {
  std::vector<Fault> faults;
  /// Hand out completions in a random order of this seed; 0: in the order they come.
  std::uint64_t reorder_seed = 0;
};

class FaultyEngine final : public ReadEngine {
 public:
  FaultyEngine(std::unique_ptr<ReadEngine> inner, FaultScript script);
  ~FaultyEngine() override;

  [[nodiscard]] std::string_view name() const noexcept override { return "faulty"; }
  [[nodiscard]] std::size_t depth() const noexcept override { return inner_->depth(); }
  [[nodiscard]] std::size_t in_flight() const noexcept override { return inner_->in_flight() + held_.size(); }
  std::size_t submit(std::span<ReadOp const> operations) override;
  void wait(std::size_t minimum, std::vector<ReadCompletion>& out) override;
  void cancel() noexcept override { inner_->cancel(); }
  void drain(std::vector<ReadCompletion>& out) noexcept override;
  void wake() noexcept override { inner_->wake(); }
  void announce_buffer(std::span<std::byte> memory) override { inner_->announce_buffer(memory); }

 private:
  struct Struck {
    std::uint64_t tag = 0;
    std::span<std::byte> destination;
    std::optional<std::int64_t> at_most{};  // kShort, kEndOfFile
    std::uint64_t delay = 0;
  };
  struct Held {
    ReadCompletion completion;
    std::uint64_t due = 0;
  };

  Struck strike(ReadOp const& operation, std::optional<int>* error);
  void hold(ReadCompletion const& inner);
  void hand_out(std::vector<ReadCompletion>& out);

  std::unique_ptr<ReadEngine> inner_;
  FaultScript script_;
  std::mt19937_64 order_;
  std::uint64_t submitted_ = 0;
  std::uint64_t step_ = 0;
  std::vector<std::optional<Struck>> slots_;  // index is the tag given to the inner engine
  std::vector<Held> held_;
};

}  // namespace noria

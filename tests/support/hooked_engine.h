/// A read engine that lets a test act at an exact moment: between two calls of the reader's thread.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "io/read_engine.h"

namespace noria::testing {

/// Calls `before_wait(n)` before the n-th wait() (from 0), on the reader's thread.
class HookedEngine final : public ReadEngine {
 public:
  HookedEngine(std::unique_ptr<ReadEngine> inner, std::function<void(std::size_t)> before_wait)
      : inner_(std::move(inner)), before_wait_(std::move(before_wait)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return inner_->name(); }
  [[nodiscard]] std::size_t depth() const noexcept override { return inner_->depth(); }
  [[nodiscard]] std::size_t in_flight() const noexcept override { return inner_->in_flight(); }
  std::size_t submit(std::span<ReadOp const> operations) override { return inner_->submit(operations); }
  void wait(std::size_t minimum, std::vector<ReadCompletion>& out) override {
    before_wait_(waits_++);
    inner_->wait(minimum, out);
  }
  void cancel() noexcept override { inner_->cancel(); }
  void drain(std::vector<ReadCompletion>& out) noexcept override { inner_->drain(out); }
  void wake() noexcept override { inner_->wake(); }

 private:
  std::unique_ptr<ReadEngine> inner_;
  std::function<void(std::size_t)> before_wait_;
  std::size_t waits_ = 0;
};

}  // namespace noria::testing

#include "io/faulty_engine.h"

#include <noria/error.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace noria {
namespace {

// What a short read leaves behind: whoever trusts more than the reported bytes finds this.
constexpr int kStale = 0xdb;

bool strikes(Fault const& fault, std::uint64_t number) {
  if (number < fault.first) {
    return false;
  }
  return number == fault.first || (fault.every != 0 && (number - fault.first) % fault.every == 0);
}

std::int64_t shortened(std::int64_t result, std::int64_t at_most) {
  return std::min(result, std::max<std::int64_t>(1, at_most < 0 ? result + at_most : at_most));
}

}  // namespace

FaultyEngine::FaultyEngine(std::unique_ptr<ReadEngine> inner, FaultScript script)
    : inner_(std::move(inner)), script_(std::move(script)), order_(script_.reorder_seed), slots_(inner_->depth()) {}

FaultyEngine::~FaultyEngine() = default;

FaultyEngine::Struck FaultyEngine::strike(ReadOp const& operation, std::optional<int>* error) {
  Struck struck{.tag = operation.tag, .destination = operation.destination};
  ++submitted_;
  for (Fault const& fault : script_.faults) {
    if (!strikes(fault, submitted_)) {
      continue;
    }
    switch (fault.kind) {
      case Fault::Kind::kShort:
        struck.at_most = fault.value;
        break;
      case Fault::Kind::kEndOfFile:
        struck.at_most = 0;
        break;
      case Fault::Kind::kError:
        *error = static_cast<int>(fault.value);
        break;
      case Fault::Kind::kDelay:
        struck.delay += static_cast<std::uint64_t>(fault.value);
        break;
    }
  }
  return struck;
}

std::size_t FaultyEngine::submit(std::span<ReadOp const> operations) {
  std::size_t const accepted = std::min(operations.size(), depth() - in_flight());
  for (ReadOp operation : operations.first(accepted)) {
    std::optional<int> error;
    Struck const struck = strike(operation, &error);
    if (error) {
      held_.push_back({.completion = {.tag = operation.tag, .result = -*error}, .due = step_ + struck.delay});
      continue;
    }
    auto const free_slot = std::ranges::find_if(slots_, [](auto const& slot) { return !slot; });
    *free_slot = struck;
    operation.tag = static_cast<std::uint64_t>(free_slot - slots_.begin());
    inner_->submit({&operation, 1});
  }
  return accepted;
}

void FaultyEngine::hold(ReadCompletion const& inner) {
  std::optional<Struck> const taken = std::exchange(slots_[inner.tag], std::nullopt);
  if (!taken) {
    throw Error("a read completed twice, or was never submitted");
  }
  Struck const& struck = *taken;
  std::int64_t result = inner.result;
  if (struck.at_most && result > 0) {
    std::int64_t const reported = *struck.at_most == 0 ? 0 : shortened(result, *struck.at_most);
    std::memset(struck.destination.data() + reported, kStale, static_cast<std::size_t>(result - reported));
    result = reported;
  }
  held_.push_back({.completion = {.tag = struck.tag, .result = result}, .due = step_ + struck.delay});
}

void FaultyEngine::hand_out(std::vector<ReadCompletion>& out) {
  if (script_.reorder_seed != 0) {
    std::ranges::shuffle(held_, order_);
  }
  std::erase_if(held_, [&](Held const& held) {
    if (held.due > step_) {
      return false;
    }
    out.push_back(held.completion);
    return true;
  });
}

void FaultyEngine::wait(std::size_t minimum, std::vector<ReadCompletion>& out) {
  std::size_t const before = out.size();
  std::size_t const wanted = std::min(minimum, in_flight());
  std::vector<ReadCompletion> arrived;
  while (true) {
    ++step_;
    hand_out(out);
    if (out.size() - before >= wanted && (wanted != 0 || minimum == 0)) {
      return;
    }
    if (inner_->in_flight() != 0) {
      arrived.clear();
      inner_->wait(1, arrived);
      if (arrived.empty()) {
        return;  // woken
      }
      for (ReadCompletion const& completion : arrived) {
        hold(completion);
      }
    } else if (held_.empty()) {
      return;
    } else {
      // Nothing else can happen before the next late one is due.
      step_ = std::max(step_, std::ranges::min_element(held_, {}, &Held::due)->due);
    }
  }
}

void FaultyEngine::drain(std::vector<ReadCompletion>& out) noexcept {
  std::vector<ReadCompletion> arrived;
  inner_->drain(arrived);
  for (ReadCompletion const& completion : arrived) {
    hold(completion);
  }
  for (Held const& held : held_) {
    out.push_back(held.completion);
  }
  held_.clear();
}

}  // namespace noria

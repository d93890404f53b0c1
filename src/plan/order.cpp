#include "plan/order.h"

#include <algorithm>

namespace noria::plan {

UseOrder::UseOrder(std::size_t capacity) : history_(std::max<std::size_t>(capacity, kContext + 1)) {}

void UseOrder::clear() {
  end_ = 0;
  has_match_ = false;
  match_length_ = 0;
  latest_.clear();
}

std::uint64_t UseOrder::context_key(std::uint64_t end, std::size_t length) const {
  // FNV-1a over the group numbers; a collision only costs a wrong guess, since every match is compared in full.
  std::uint64_t key = 1469598103934665603ULL ^ length;
  for (std::size_t i = 0; i < length; ++i) {
    key = (key ^ at(end - length + i)) * 1099511628211ULL;
  }
  return key;
}

void UseOrder::index_latest() {
  for (std::size_t length = 1; length <= kContext && length <= end_; ++length) {
    latest_[context_key(end_, length)] = end_;
  }
  // Stale positions are harmless but must not pile up when the groups in use keep changing.
  if (latest_.size() > kContext * history_.size() + 64) {
    std::erase_if(latest_, [this](auto const& entry) { return !held(entry.second); });
  }
}

void UseOrder::find_match() {
  has_match_ = false;
  match_length_ = 0;
  for (std::size_t length = std::min<std::size_t>(kContext, end_); length >= 1; --length) {
    auto const found = latest_.find(context_key(end_, length));
    if (found == latest_.end() || found->second < length || found->second >= end_ || !held(found->second - length)) {
      continue;
    }
    std::uint64_t const place = found->second;
    bool equal = true;
    for (std::size_t i = 1; i <= length; ++i) {
      equal = equal && at(place - i) == at(end_ - i);
    }
    if (equal) {
      match_ = place;
      match_length_ = length;
      has_match_ = true;
      return;
    }
  }
}

bool UseOrder::record(GroupIndex group) {
  has_match_ = has_match_ && held(match_);  // the oldest use is about to be forgotten
  bool const expected = has_match_ && at(match_) == group;
  bool const had_expectation = has_match_;
  history_[end_ % history_.size()] = group;
  ++end_;
  if (expected) {
    ++match_;
    ++match_length_;
  } else {
    surprises_ += had_expectation ? 1 : 0;
    find_match();
  }
  index_latest();
  return expected;
}

std::size_t UseOrder::upcoming(std::span<GroupIndex> out) const {
  if (!has_match_) {
    return 0;
  }
  // Past the present the expectation is its own continuation: position `end_` is what `match_` says, and so on.
  auto const period = static_cast<std::size_t>(end_ - match_);
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint64_t const position = match_ + (i % period);
    if (!held(position)) {
      return i;
    }
    out[i] = at(position);
  }
  return out.size();
}

}  // namespace noria::plan

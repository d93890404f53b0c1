/// The learned order of group uses, and what comes next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace noria::plan {

using GroupIndex = std::uint32_t;

/// Note [Order]
/// A model uses its groups in an order that repeats, but not always exactly: a cache skips blocks, a branch is taken, a
/// decoder is entered by tiles. The history of uses is one sequence (a group may stand in it many times in a pass). We
/// keep a place in the past whose recent uses equal the most recent uses of now, as long a match as there is, and what
/// followed it then is what we expect next. While the model repeats itself the place just moves along; when a use
/// differs from what was expected, a new place is looked up by the last few uses. So a pass needs no beginning, a
/// repeated block is told from its second use by what came before it, and prediction runs across the end of a pass. It
/// is the match finder of LZ77 (Ziv and Lempel, 1977) used as a predictor.
class UseOrder {
 public:
  /// Remembers at most `capacity` uses; older ones are forgotten.
  explicit UseOrder(std::size_t capacity = std::size_t{1} << 16U);

  /// Says that `group` is used now. Returns whether that was expected.
  bool record(GroupIndex group);

  /// What is expected next, nearest first: at most `out.size()` uses, fewer when less is known. Groups may repeat.
  /// Returns how many were written.
  std::size_t upcoming(std::span<GroupIndex> out) const;

  /// Length of the match behind the expectation, in uses; 0 when nothing is expected.
  [[nodiscard]] std::size_t confidence() const { return has_match_ ? match_length_ : 0; }
  [[nodiscard]] std::uint64_t uses() const { return end_; }
  [[nodiscard]] std::uint64_t surprises() const { return surprises_; }

  /// Distance between now and the matched place, in uses: the period, once the order repeats. 0 when unknown.
  [[nodiscard]] std::size_t period() const { return has_match_ ? static_cast<std::size_t>(end_ - match_) : 0; }

  void clear();

 private:
  static constexpr std::size_t kContext = 3;

  [[nodiscard]] GroupIndex at(std::uint64_t position) const { return history_[position % history_.size()]; }
  [[nodiscard]] bool held(std::uint64_t position) const { return position + history_.size() >= end_; }
  [[nodiscard]] std::uint64_t context_key(std::uint64_t end, std::size_t length) const;
  void index_latest();
  void find_match();

  std::vector<GroupIndex> history_;
  std::uint64_t end_ = 0;    // uses recorded so far; the history holds [end_ - size, end_)
  std::uint64_t match_ = 0;  // the use expected next stands at this position
  bool has_match_ = false;
  std::size_t match_length_ = 0;
  std::uint64_t surprises_ = 0;
  std::unordered_map<std::uint64_t, std::uint64_t>
      latest_;  // context of the last 1..kContext uses -> position after it
};

}  // namespace noria::plan

#include "plan/steady_pass.h"

#include <algorithm>
#include <optional>

#include "plan/ring_policy.h"

namespace noria::plan {
namespace {

class Pass {
 public:
  Pass(std::span<GroupUse const> groups, std::span<GroupIndex const> order, Residency const& residency,
       Speeds const& speeds)
      : groups_(groups), order_(order), residency_(residency), speeds_(speeds), ring_(residency.ring_bytes) {
    states_.resize(groups.size());
    for (GroupUse const& group : groups) {
      for (GroupIndex around : group.around) {
        states_[around].tenant.nested = true;
      }
    }
  }

  /// Goes through the order once and returns the time at its end.
  double run() {
    for (std::size_t i = 0; i < order_.size(); ++i) {
      GroupIndex const group = order_[i];
      std::vector<GroupIndex> together = groups_[group].around;
      together.push_back(group);
      for (GroupIndex member : together) {
        states_[member].tenant.in_use = true;
      }
      bool demanded = false;
      for (GroupIndex member : together) {
        if (!residency_.resident[member] && !states_[member].loaded) {
          demanded = true;
          load(member, together, true);
        }
        now_ = std::max(now_, states_[member].ready);
        states_[member].tenant.used_since_load = true;
      }
      if (demanded) {
        load_ahead(i);
      }
      now_ += speeds_.use_seconds[i];
      for (GroupIndex member : together) {
        State& state = states_[member];
        state.tenant.in_use = false;
        state.tenant.last_use = ++clock_;
        state.free = now_;
      }
      load_ahead(i);
    }
    return now_;
  }

 private:
  struct State {
    Tenant tenant;
    bool loaded = false;
    double ready = 0.0;
    double free = 0.0;  // the end of its latest use
  };

  struct Part {
    GroupIndex group = 0;
    Bytes place_begin = 0;
    Bytes bytes = 0;  // copied so far
  };

  bool load(GroupIndex group, std::span<GroupIndex const> sooner, bool demanded) {
    RoomRequest const request{.group = group,
                              .bytes = groups_[group].bytes,
                              .nested = states_[group].tenant.nested,
                              .demanded = demanded,
                              .sooner = sooner};
    auto const tenant = [this](GroupIndex other) { return states_[other].tenant; };
    if (part_ && part_->group == group) {
      if (auto const piece = extend_piece(ring_, request, part_->place_begin, tenant)) {
        take_piece(request, *piece, part_->bytes);
      }
      if (!part_) {
        return true;
      }
      if (!demanded) {
        return false;
      }
      ring_.remove(group);
      part_.reset();
    }
    auto const placement = find_room(ring_, request, tenant);
    if (!placement) {
      if (!demanded && !part_) {
        if (auto const piece = find_piece(ring_, request, tenant)) {
          take_piece(request, *piece, 0);
        }
      }
      return false;
    }
    copy(groups_[group].bytes, placement->evicted);
    finish_load(group);
    return true;
  }

  /// Copies what the piece has more than the `copied` bytes of before.
  void take_piece(RoomRequest const& request, RangeMap::Piece const& piece, Bytes copied) {
    copy(piece.bytes() - copied, piece.evicted);
    states_[request.group].tenant.used_since_load = false;
    part_ = Part{.group = request.group, .place_begin = piece.place_begin, .bytes = piece.bytes()};
    if (piece.bytes() == request.bytes) {
      part_.reset();
      finish_load(request.group);
    }
  }

  void finish_load(GroupIndex group) {
    State& state = states_[group];
    state.loaded = true;
    state.ready = copies_done_;
    state.tenant.used_since_load = false;
  }

  void copy(Bytes bytes, std::span<GroupIndex const> evicted) {
    double begin = copies_done_;
    for (GroupIndex other : evicted) {
      begin = std::max(begin, states_[other].free);
      states_[other].loaded = false;
      if (part_ && part_->group == other) {
        part_.reset();
      }
    }
    copies_done_ = begin + speeds_.latency_seconds + static_cast<double>(bytes) / speeds_.bytes_per_second;
  }

  void load_ahead(std::size_t use) {
    std::vector<GroupIndex> sooner;
    std::size_t ahead = 0;
    std::size_t const count = std::min(kLookAhead, order_.size());
    for (std::size_t k = 1; k <= count; ++k) {
      GroupIndex const group = order_[(use + k) % order_.size()];
      if (residency_.resident[group]) {
        continue;
      }
      if (!states_[group].loaded && (ahead >= kMostAhead || !load(group, sooner, false))) {
        return;
      }
      ahead += states_[group].tenant.used_since_load ? 0 : 1;
      sooner.push_back(group);
    }
  }

  std::span<GroupUse const> groups_;
  std::span<GroupIndex const> order_;
  Residency const& residency_;
  Speeds const& speeds_;
  RangeMap ring_;
  std::vector<State> states_;
  std::optional<Part> part_;
  double now_ = 0.0;
  double copies_done_ = 0.0;
  std::uint64_t clock_ = 0;
};

}  // namespace

Speeds Speeds::assumed(std::span<GroupUse const> groups, std::size_t uses) {
  double bytes = 0.0;
  for (GroupUse const& group : groups) {
    bytes += static_cast<double>(group.bytes);
  }
  double const share = 0.25 / static_cast<double>(std::max<std::size_t>(uses, 1));
  return {.use_seconds = std::vector<double>(uses, bytes * share)};
}

double steady_seconds(std::span<GroupUse const> groups, std::span<GroupIndex const> order, Residency const& residency,
                      Speeds const& speeds) {
  // The ring may take turns with a period of several passes: two to settle, then the mean of four.
  constexpr int kSettling = 2;
  constexpr int kMeasured = 4;
  Pass pass(groups, order, residency, speeds);
  double begin = 0.0;
  for (int i = 0; i < kSettling; ++i) {
    begin = pass.run();
  }
  double end = begin;
  for (int i = 0; i < kMeasured; ++i) {
    end = pass.run();
  }
  return (end - begin) / kMeasured;
}

}  // namespace noria::plan

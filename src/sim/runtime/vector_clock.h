/// Logical time: what an actor (the host or a stream) knows to have happened, per actor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace noria::sim {

using ActorId = std::uint16_t;

/// Counts the operations of one actor; 0 is before the first.
using Epoch = std::uint64_t;

/// Per actor, the last operation that is known. Actors that are not in it are known up to epoch 0.
class VectorClock {
 public:
  [[nodiscard]] Epoch at(ActorId actor) const { return actor < epochs_.size() ? epochs_[actor] : 0; }

  [[nodiscard]] bool knows(ActorId actor, Epoch epoch) const { return epoch <= at(actor); }

  void set(ActorId actor, Epoch epoch) {
    if (actor >= epochs_.size()) {
      epochs_.resize(std::size_t{actor} + 1);
    }
    epochs_[actor] = epoch;
  }

  /// Learns all that `other` knows; true when something was new.
  bool merge(VectorClock const& other) {
    if (epochs_.size() < other.epochs_.size()) {
      epochs_.resize(other.epochs_.size());
    }
    bool learned = false;
    for (std::size_t i = 0; i < other.epochs_.size(); ++i) {
      learned |= other.epochs_[i] > epochs_[i];
      epochs_[i] = std::max(epochs_[i], other.epochs_[i]);
    }
    return learned;
  }

 private:
  std::vector<Epoch> epochs_;
};

}  // namespace noria::sim

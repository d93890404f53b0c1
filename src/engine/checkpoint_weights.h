/// Which tensor of a checkpoint is which weight of a model.
#pragma once

#include <noria/checkpoint.h>

#include <string>
#include <vector>

#include "engine/model_tree.h"
#include "engine/tensor_table.h"
#include "format/shard_set.h"

namespace noria {

/// Note [Emptied weights]
/// An emptied parameter keeps its storage, with its size and without memory: PyTorch raises when it is read. So it
/// stays a tensor of the cpu, which the engine can take over as it is and every handle to it follows.
///
/// True for those, and for tensors on meta: there are no values to keep.
bool has_no_values(at::Tensor const& tensor);

/// The part of a checkpoint that a model wants.
class CheckpointWeights {
 public:
  /// `table` is the model's. Throws IntegrityError that names the parameters that the checkpoint lacks or holds in
  /// another shape, or in a dtype that cannot become theirs.
  CheckpointWeights(Checkpoint const& checkpoint, ModelTree const& model, TensorTable const& table);

  /// Makes the files the home of a group, as far as they hold it. False when they hold none of it. Its pages need no
  /// bytes from memory then.
  bool give_home(Engine& engine, ModelTree const& model, TensorTable& table, plan::GroupIndex group) const;

  struct Found {
    std::size_t tensor = 0;  ///< of the model
    ShardTensor source;
  };
  /// By page: what fills it. `source.entry` is null where the checkpoint has nothing.
  [[nodiscard]] std::vector<Found> const& pages() const { return pages_; }
  [[nodiscard]] ShardSet const& shards() const { return *shards_; }

 private:
  std::shared_ptr<ShardSet const> shards_;
  std::vector<Found> pages_;
};

}  // namespace noria

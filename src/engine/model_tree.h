/// A C++ or TorchScript model as the engine sees it: its modules in call order, and the tensors they register.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "engine/tensor_table.h"
#include "plan/grouping.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn
namespace torch::jit {
struct Module;
}  // namespace torch::jit

namespace noria {

struct ModelTree {
  struct Tensor {
    at::Tensor tensor;
    std::string name;  ///< dotted, from the root
    bool buffer = false;
  };
  struct Node {
    std::string name;
    plan::ModuleIndex parent = plan::kNoModule;
    bool list = false;
    bool called = true;
    std::vector<std::size_t> tensors = {};  ///< its own
  };

  std::string type;  ///< name of the root's class
  std::vector<Node> modules;
  std::vector<Tensor> tensors;

  static ModelTree of(torch::nn::Module const& root);
  /// Throws std::invalid_argument for a frozen module: its weights are constants of its code.
  static ModelTree of(torch::jit::Module const& root);

  /// Every tensor, by its index here, with its pages found.
  [[nodiscard]] TensorTable table() const;
  /// Groups over the pages of that table, as Engine::group makes them.
  [[nodiscard]] plan::Grouping group(TensorTable const& table, plan::GroupingOptions const& options,
                                     Bytes budget) const;
};

}  // namespace noria

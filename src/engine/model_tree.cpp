#include "engine/model_tree.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/parameterdict.h>
#include <torch/nn/modules/container/parameterlist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <optional>
#include <set>
#include <type_traits>

namespace noria {
namespace {

std::string joined(std::string const& prefix, std::string const& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

/// What the two kinds of module tell in ways of their own.
struct Described {
  void const* identity = nullptr;
  bool list = false;
  bool called = true;
};

Described described(torch::nn::Module const& module) {
  bool const plain_list = dynamic_cast<torch::nn::ModuleListImpl const*>(&module) != nullptr ||
                          dynamic_cast<torch::nn::ModuleDictImpl const*>(&module) != nullptr;
  bool const parameters = dynamic_cast<torch::nn::ParameterListImpl const*>(&module) != nullptr ||
                          dynamic_cast<torch::nn::ParameterDictImpl const*>(&module) != nullptr;
  return {.identity = &module,
          .list = plain_list || dynamic_cast<torch::nn::SequentialImpl const*>(&module) != nullptr,
          .called = !plain_list && !parameters};
}

std::string class_name(torch::jit::Module const& module) {
  std::optional<c10::QualifiedName> const name = module.type()->name();
  return name ? name->name() : "Module";
}

/// TorchScript keeps the names of Python's container classes.
Described described(torch::jit::Module const& module) {
  std::string const type = class_name(module);
  bool const plain_list = type == "ModuleList" || type == "ModuleDict";
  return {.identity = module._ivalue().get(),
          .list = plain_list || type == "Sequential",
          .called = !plain_list && type != "ParameterList" && type != "ParameterDict"};
}

template <typename Pairs, typename Visit>
void for_each(Pairs const& pairs, Visit const& visit) {
  if constexpr (requires { pairs.begin()->key(); }) {
    for (auto const& item : pairs) {
      visit(item.key(), item.value());
    }
  } else {
    for (auto const& item : pairs) {
      visit(item.name, item.value);
    }
  }
}

template <typename Module>
class Walk {
 public:
  explicit Walk(ModelTree& tree) : tree_(tree) {}

  void visit(Module const& module, std::string const& name, plan::ModuleIndex parent) {
    Described const kind = described(module);
    if (!seen_.insert(kind.identity).second) {
      return;  // registered under a second name
    }
    auto const index = static_cast<plan::ModuleIndex>(tree_.modules.size());
    tree_.modules.push_back({.name = name, .parent = parent, .list = kind.list, .called = kind.called});
    for_each(module.named_parameters(/*recurse=*/false),
             [&](std::string const& key, at::Tensor const& tensor) { add(index, joined(name, key), tensor, false); });
    for_each(module.named_buffers(/*recurse=*/false),
             [&](std::string const& key, at::Tensor const& tensor) { add(index, joined(name, key), tensor, true); });
    for_each(module.named_children(), [&](std::string const& key, auto const& child) {
      if constexpr (std::is_same_v<Module, torch::nn::Module>) {
        visit(*child, joined(name, key), index);
      } else {
        visit(child, joined(name, key), index);
      }
    });
  }

 private:
  void add(plan::ModuleIndex module, std::string name, at::Tensor const& tensor, bool buffer) {
    if (tensor.defined()) {
      tree_.modules[module].tensors.push_back(tree_.tensors.size());
      tree_.tensors.push_back({.tensor = tensor, .name = std::move(name), .buffer = buffer});
    }
  }

  ModelTree& tree_;
  std::set<void const*> seen_;
};

}  // namespace

ModelTree ModelTree::of(torch::nn::Module const& root) {
  ModelTree tree;
  tree.type = root.name();
  Walk<torch::nn::Module>(tree).visit(root, "", plan::kNoModule);
  return tree;
}

ModelTree ModelTree::of(torch::jit::Module const& root) {
  ModelTree tree;
  tree.type = class_name(root);
  Walk<torch::jit::Module>(tree).visit(root, "", plan::kNoModule);
  // torch.jit.freeze turns parameters into constants, and takes the attribute `training` away.
  if (tree.tensors.empty() && !root.hasattr("training")) {
    throw std::invalid_argument("the TorchScript module " + tree.type +
                                " is frozen: its weights are constants of its code and cannot be taken from the "
                                "device. Save it without torch.jit.freeze or optimize_for_inference");
  }
  return tree;
}

TensorTable ModelTree::table() const {
  TensorTable table;
  for (Tensor const& entry : tensors) {
    table.add(entry.tensor, entry.name);
  }
  table.find_pages();
  return table;
}

plan::Grouping ModelTree::group(TensorTable const& table, plan::GroupingOptions const& options, Bytes budget) const {
  std::vector<plan::ModuleNode> nodes;
  nodes.reserve(modules.size());
  for (Node const& module : modules) {
    plan::ModuleNode node{.name = module.name, .parent = module.parent, .list = module.list, .called = module.called};
    for (std::size_t tensor : module.tensors) {
      plan::PageIndex const page = table.page_of(tensor);
      if (page != TensorTable::kNoPage && std::ranges::find(node.pages, page) == node.pages.end()) {
        node.pages.push_back(page);
      }
    }
    nodes.push_back(std::move(node));
  }
  return Engine::group(nodes, table.pages(), options, budget);
}

}  // namespace noria

#include "plan/grouping.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

namespace noria::plan {
namespace {

/// Gives every module an owner: the module whose group its tensors belong to.
class OwnerFinder {
 public:
  OwnerFinder(std::span<ModuleNode const> modules, std::span<Bytes const> page_bytes, GroupingOptions const& options)
      : modules_(modules),
        page_bytes_(page_bytes),
        options_(options),
        children_(modules.size()),
        holds_list_(modules.size(), false),
        owner_(modules.size(), kNoModule) {
    for (ModuleIndex i = 0; i < modules_.size(); ++i) {
      if (modules_[i].parent != kNoModule) {
        children_[modules_[i].parent].push_back(i);
      }
    }
    for (auto i = static_cast<ModuleIndex>(modules_.size()); i-- > 0;) {
      bool const has_blocks = is_block_list(i);
      holds_list_[i] = has_blocks || std::ranges::any_of(children_[i], [&](ModuleIndex c) { return holds_list_[c]; });
    }
  }

  std::vector<ModuleIndex> find() {
    check_block_modules();
    for (ModuleIndex i = 0; i < modules_.size(); ++i) {
      if (modules_[i].parent == kNoModule) {
        split(i);
      }
    }
    return owner_;
  }

 private:
  /// The name of the child of its root that `module` is in, or is.
  [[nodiscard]] std::string top_name(ModuleIndex module) const {
    while (modules_[module].parent != kNoModule && modules_[modules_[module].parent].parent != kNoModule) {
      module = modules_[module].parent;
    }
    std::string const& name = modules_[module].name;
    return name.substr(name.rfind('.') + 1);
  }

  void check_block_modules() const {
    for (std::string const& wanted : options_.block_modules) {
      bool const there = std::ranges::any_of(modules_, [&](ModuleNode const& m) {
        return m.parent != kNoModule && (m.name == wanted || m.name.ends_with("." + wanted));
      });
      if (!there) {
        throw std::invalid_argument(
            fmt::format("block_modules names '{}', and the model has no module of that name", wanted));
      }
    }
  }

  [[nodiscard]] bool is_block_list(ModuleIndex module) const {
    if (!modules_[module].list || modules_[module].parent == kNoModule || children_[module].empty()) {
      return false;
    }
    if (options_.block_modules.empty()) {
      return true;
    }
    return std::ranges::any_of(options_.block_modules, [&](std::string const& wanted) {
      std::string const& name = modules_[module].name;
      return name == wanted || name.starts_with(wanted + ".") || top_name(module) == wanted ||
             name.find("." + wanted + ".") != std::string::npos || name.ends_with("." + wanted);
    });
  }

  [[nodiscard]] Bytes subtree_bytes(ModuleIndex module) const {
    std::set<PageIndex> pages;
    collect(module, pages);
    Bytes sum = 0;
    for (PageIndex page : pages) {
      sum += page_bytes_[page];
    }
    return sum;
  }

  void collect(ModuleIndex module, std::set<PageIndex>& pages) const {
    pages.insert(modules_[module].pages.begin(), modules_[module].pages.end());
    for (ModuleIndex child : children_[module]) {
      collect(child, pages);
    }
  }

  void own_subtree(ModuleIndex module, ModuleIndex owner) {
    owner_[module] = owner;
    for (ModuleIndex child : children_[module]) {
      own_subtree(child, owner);
    }
  }

  [[nodiscard]] bool too_large(ModuleIndex module) const {
    return options_.granularity == Granularity::kAuto && options_.split_above_bytes > 0 &&
           subtree_bytes(module) > options_.split_above_bytes;
  }

  /// The tensors of `module` itself are one group, its children are looked at one by one.
  void split(ModuleIndex module) {
    owner_[module] = module;
    if (options_.granularity != Granularity::kLeaf && is_block_list(module)) {
      split_blocks(module);
      return;
    }
    for (ModuleIndex child : children_[module]) {
      bool const whole = options_.granularity != Granularity::kLeaf && !holds_list_[child] && modules_[child].called &&
                         !too_large(child);
      if (whole) {
        own_subtree(child, child);
      } else {
        split(child);
      }
    }
  }

  void split_blocks(ModuleIndex list) {
    std::uint32_t const step = std::max<std::uint32_t>(options_.blocks_per_group, 1);
    auto const& blocks = children_[list];
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      ModuleIndex const block = blocks[i];
      if (too_large(block) || !modules_[block].called) {
        split(block);
      } else {
        own_subtree(block, blocks[i - i % step]);
      }
    }
  }

  std::span<ModuleNode const> modules_;
  std::span<Bytes const> page_bytes_;
  GroupingOptions const& options_;
  std::vector<std::vector<ModuleIndex>> children_;
  std::vector<bool> holds_list_;
  std::vector<ModuleIndex> owner_;
};

/// The module whose forward covers `module` within the subtree of its group: the block itself, not the group's first.
ModuleIndex trigger_of(std::span<ModuleNode const> modules, std::vector<ModuleIndex> const& owner, ModuleIndex module) {
  while (modules[module].parent != kNoModule && owner[modules[module].parent] == owner[module] &&
         modules[modules[module].parent].called) {
    module = modules[module].parent;
  }
  return module;
}

}  // namespace

Grouping make_groups(std::span<ModuleNode const> modules, std::span<Bytes const> page_bytes,
                     GroupingOptions const& options) {
  std::vector<ModuleIndex> const owner = OwnerFinder(modules, page_bytes, options).find();

  std::vector<std::vector<ModuleIndex>> owners_of_page(page_bytes.size());
  std::vector<std::set<ModuleIndex>> triggers_of_page(page_bytes.size());
  for (ModuleIndex module = 0; module < modules.size(); ++module) {
    for (PageIndex page : modules[module].pages) {
      if (std::ranges::find(owners_of_page[page], owner[module]) == owners_of_page[page].end()) {
        owners_of_page[page].push_back(owner[module]);
      }
      triggers_of_page[page].insert(trigger_of(modules, owner, module));
    }
  }

  Grouping out;
  out.needs.resize(modules.size());
  for (ModuleNode const& module : modules) {
    out.roots.push_back(module.parent == kNoModule);
  }
  std::map<std::vector<ModuleIndex>, GroupIndex> index;  // by the owners that share it
  std::vector<std::set<ModuleIndex>> triggers;
  for (PageIndex page = 0; page < page_bytes.size(); ++page) {
    auto owners = owners_of_page[page];
    if (owners.empty()) {
      continue;
    }
    std::ranges::sort(owners);
    auto const [entry, fresh] = index.try_emplace(owners, static_cast<GroupIndex>(out.groups.size()));
    if (fresh) {
      std::string name = modules[owners.front()].name;
      for (std::size_t i = 1; i < owners.size(); ++i) {
        name += "+" + modules[owners[i]].name;
      }
      out.groups.push_back({.name = name.empty() ? "(root)" : name, .pages = {}, .triggers = {}});
      triggers.emplace_back();
    }
    out.groups[entry->second].pages.push_back(page);
    triggers[entry->second].insert(triggers_of_page[page].begin(), triggers_of_page[page].end());
  }

  for (GroupIndex group = 0; group < out.groups.size(); ++group) {
    out.groups[group].triggers.assign(triggers[group].begin(), triggers[group].end());
    for (ModuleIndex trigger : out.groups[group].triggers) {
      out.needs[trigger].push_back(group);
    }
  }
  out.around.resize(out.groups.size());
  for (GroupIndex group = 0; group < out.groups.size(); ++group) {
    std::set<GroupIndex> around;
    for (ModuleIndex trigger : out.groups[group].triggers) {
      for (ModuleIndex module = trigger; module != kNoModule; module = modules[module].parent) {
        around.insert(out.needs[module].begin(), out.needs[module].end());
      }
    }
    around.erase(group);
    out.around[group].assign(around.begin(), around.end());
  }
  return out;
}

}  // namespace noria::plan

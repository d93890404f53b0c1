/// From a module tree to groups: which weights move together, and which module's forward needs which groups.
#pragma once

#include <noria/bytes.h>
#include <noria/granularity.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/order.h"

namespace noria::plan {

using PageIndex = std::uint32_t;
using ModuleIndex = std::uint32_t;
inline constexpr ModuleIndex kNoModule = ~ModuleIndex{0};

/// One module of the tree. Parents come before their children.
struct ModuleNode {
  std::string name;                   ///< dotted path from the root, "" for the root
  ModuleIndex parent = kNoModule;     ///< kNoModule for a root; there may be several (the components of a pipeline)
  bool list = false;                  ///< its children are blocks: ModuleList, ModuleDict, Sequential
  bool called = true;                 ///< has a forward of its own; a ModuleList has none
  std::vector<PageIndex> pages = {};  ///< of its direct parameters and buffers; a page may stand in several modules
};

using noria::Granularity;

struct GroupingOptions {
  Granularity granularity = Granularity::kAuto;
  std::uint32_t blocks_per_group = 1;
  /// Names of the children of a root under which lists count as blocks; empty: everywhere.
  std::vector<std::string> block_modules = {};
  /// kAuto splits subtrees larger than this, down to leaves. 0: no limit.
  Bytes split_above_bytes = 0;
};

struct Group {
  std::string name;
  std::vector<PageIndex> pages;
  std::vector<ModuleIndex> triggers;  ///< any of these running needs the group
};

struct Grouping {
  std::vector<Group> groups;
  /// Per module: the groups its forward needs, its own first; empty when it needs none of its own.
  std::vector<std::vector<GroupIndex>> needs;
  /// Per group: the other groups in use whenever one of its triggers runs (modules around it, shared pages).
  std::vector<std::vector<GroupIndex>> around;
  /// Per module: whether it is a root, whose forward is a pass.
  std::vector<bool> roots;
};

/// Pages shared between modules of different groups become groups of their own, needed by each. Every page is in
/// exactly one group; groups without pages are dropped. Throws std::invalid_argument when a block module is not there.
Grouping make_groups(std::span<ModuleNode const> modules, std::span<Bytes const> page_bytes,
                     GroupingOptions const& options);

}  // namespace noria::plan

#include "plan/grouping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace noria::plan {
namespace {
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

/// A tree written by hand; every module gets `pages` fresh pages of 10 bytes unless told otherwise.
struct Tree {
  std::vector<ModuleNode> modules;
  std::vector<Bytes> page_bytes;

  ModuleIndex add(std::string name, ModuleIndex parent, int pages = 1) {
    ModuleNode node{.name = std::move(name), .parent = parent};
    for (int i = 0; i < pages; ++i) {
      node.pages.push_back(static_cast<PageIndex>(page_bytes.size()));
      page_bytes.push_back(10);
    }
    modules.push_back(node);
    return static_cast<ModuleIndex>(modules.size() - 1);
  }
  ModuleIndex add_list(std::string name, ModuleIndex parent) {
    ModuleIndex const index = add(std::move(name), parent, 0);
    modules[index].list = true;
    modules[index].called = false;
    return index;
  }
  [[nodiscard]] Grouping groups(GroupingOptions const& options) const {
    return make_groups(modules, page_bytes, options);
  }
};

std::vector<std::string> names(Grouping const& grouping) {
  std::vector<std::string> out;
  out.reserve(grouping.groups.size());
  for (Group const& group : grouping.groups) {
    out.push_back(group.name);
  }
  return out;
}

/// T1: proj_in, a list of blocks with two leaves each, proj_out.
Tree t1(int blocks) {
  Tree tree;
  ModuleIndex const root = tree.add("", kNoModule, 0);
  tree.add("proj_in", root);
  ModuleIndex const list = tree.add_list("blocks", root);
  for (int i = 0; i < blocks; ++i) {
    ModuleIndex const block = tree.add("blocks." + std::to_string(i), list, 0);
    tree.add("blocks." + std::to_string(i) + ".a", block);
    tree.add("blocks." + std::to_string(i) + ".b", block);
  }
  tree.add("proj_out", root);
  return tree;
}

TEST(Grouping, BlocksAreGroupsAndTheRestGoesByItself) {
  Grouping const grouping = t1(2).groups({.granularity = Granularity::kBlock});
  EXPECT_THAT(names(grouping), ElementsAre("proj_in", "blocks.0", "blocks.1", "proj_out"));
  EXPECT_EQ(grouping.groups[1].pages.size(), 2U);
  EXPECT_THAT(grouping.around[1], IsEmpty());
}

TEST(Grouping, SeveralBlocksToAGroupAndAnyOfThemTriggersIt) {
  Grouping const grouping = t1(5).groups({.granularity = Granularity::kBlock, .blocks_per_group = 2});
  EXPECT_THAT(names(grouping), ElementsAre("proj_in", "blocks.0", "blocks.2", "blocks.4", "proj_out"));
  EXPECT_EQ(grouping.groups[1].triggers.size(), 2U);
  EXPECT_EQ(grouping.groups[1].pages.size(), 4U);
}

TEST(Grouping, LeavesAreGroups) {
  EXPECT_THAT(names(t1(1).groups({.granularity = Granularity::kLeaf})),
              ElementsAre("proj_in", "blocks.0.a", "blocks.0.b", "proj_out"));
}

TEST(Grouping, BareTensorsAroundABlockAreInUseWithIt) {
  Tree tree;
  ModuleIndex const root = tree.add("", kNoModule, 1);
  ModuleIndex const list = tree.add_list("blocks", root);
  tree.add("blocks.0", list);
  Grouping const grouping = tree.groups({.granularity = Granularity::kBlock});
  EXPECT_THAT(names(grouping), ElementsAre("(root)", "blocks.0"));
  EXPECT_THAT(grouping.around[1], ElementsAre(0));
  EXPECT_THAT(grouping.around[0], IsEmpty());
}

TEST(Grouping, ATiedPageIsAGroupThatBothOwnersNeed) {
  Tree tree;
  ModuleIndex const root = tree.add("", kNoModule, 0);
  ModuleIndex const a = tree.add("embed", root, 1);
  ModuleIndex const b = tree.add("head", root, 1);
  tree.modules[b].pages.push_back(tree.modules[a].pages[0]);
  Grouping const grouping = tree.groups({.granularity = Granularity::kBlock});
  EXPECT_THAT(names(grouping), ElementsAre("embed+head", "head"));
  EXPECT_THAT(grouping.needs[b], UnorderedElementsAre(0, 1));
  EXPECT_THAT(grouping.needs[a], ElementsAre(0));
  EXPECT_THAT(grouping.around[1], ElementsAre(0));
}

TEST(Grouping, ListsInsideAnEncoderAndADecoderAreFound) {
  Tree tree;  // T3
  ModuleIndex const root = tree.add("", kNoModule, 0);
  for (std::string const side : {"encoder", "decoder"}) {
    ModuleIndex const part = tree.add(side, root, 0);
    tree.add(side + ".conv_in", part);
    ModuleIndex const list = tree.add_list(side + ".blocks", part);
    tree.add(side + ".blocks.0", list);
  }
  tree.add("quant_conv", root);
  EXPECT_THAT(names(tree.groups({.granularity = Granularity::kBlock})),
              ElementsAre("encoder.conv_in", "encoder.blocks.0", "decoder.conv_in", "decoder.blocks.0", "quant_conv"));
  EXPECT_THAT(names(tree.groups({.granularity = Granularity::kBlock, .block_modules = {"decoder"}})),
              ElementsAre("encoder", "decoder.conv_in", "decoder.blocks.0", "quant_conv"));
}

TEST(Grouping, AutoSplitsOnlyWhatIsTooLarge) {
  Tree tree = t1(2);
  tree.page_bytes[1] = 1000;  // blocks.0.a
  Grouping const grouping = tree.groups({.granularity = Granularity::kAuto, .split_above_bytes = 500});
  EXPECT_THAT(names(grouping), ElementsAre("proj_in", "blocks.0.a", "blocks.0.b", "blocks.1", "proj_out"));
}

TEST(Grouping, RefusesABlockModuleThatIsNotThere) {
  GroupingOptions const options{.granularity = Granularity::kBlock, .block_modules = {"layers"}};
  EXPECT_THROW(static_cast<void>(t1(1).groups(options)), std::invalid_argument);
}

TEST(Grouping, EveryPageIsInExactlyOneGroup) {
  for (auto granularity : {Granularity::kAuto, Granularity::kBlock, Granularity::kLeaf}) {
    Tree const tree = t1(4);
    std::vector<int> seen(tree.page_bytes.size(), 0);
    for (Group const& group : tree.groups({.granularity = granularity}).groups) {
      for (PageIndex page : group.pages) {
        ++seen[page];
      }
    }
    EXPECT_THAT(seen, ::testing::Each(1));
  }
}

}  // namespace
}  // namespace noria::plan

#include "engine/engine.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <noria/error.h>

#include "engine/tensor_table.h"
#include "support/message_of.h"
#include "support/stub_device.h"

namespace noria {
namespace {
using ::testing::HasSubstr;
using testing::message_of;

/// Square weights, one group each, called in turn.
class EngineOnCpu : public ::testing::Test {
 protected:
  static constexpr int64_t kWidth = 32;
  static constexpr Bytes kWeightBytes = kWidth * kWidth * sizeof(float);

  std::vector<at::Tensor> weights(int count) {
    std::vector<at::Tensor> out;
    out.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
      out.push_back(at::randn({kWidth, kWidth}));
    }
    return out;
  }

  std::shared_ptr<Engine> manage(std::vector<at::Tensor>& tensors, Bytes budget, c10::Device device = c10::kCPU) {
    TensorTable table;
    std::vector<plan::ModuleNode> modules{{.name = "", .parent = plan::kNoModule}};
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      table.add(tensors[i], "layers." + std::to_string(i) + ".weight");
    }
    table.find_pages();
    modules.reserve(tensors.size() + 1);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      modules.push_back({.name = "layers." + std::to_string(i), .parent = 0, .pages = {table.page_of(i)}});
    }
    std::vector<Bytes> bytes;
    bytes.reserve(table.pages().size());
    for (Engine::PageSpec const& page : table.pages()) {
      bytes.push_back(page.bytes);
    }
    auto engine = Engine::create({.device = device, .budget = budget}, table.pages(),
                                 plan::make_groups(modules, bytes, {.granularity = plan::Granularity::kLeaf}));
    for (plan::GroupIndex group = 0; group < engine->group_count(); ++group) {
      engine->give_memory_home(group);
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i] = table.manage(*engine, i);
    }
    engine->start();
    return engine;
  }
};

TEST_F(EngineOnCpu, AWeightOutsideItsUseRaisesWithItsName) {
  auto tensors = weights(2);
  auto const engine = manage(tensors, kWeightBytes);
  EXPECT_THAT(message_of([&] { (void)tensors[1].const_data_ptr(); }), HasSubstr("EvictedWeightError: layers.1.weight"));
}

TEST_F(EngineOnCpu, AUseGivesTheBytesAndTheRingHoldsOneGroup) {
  auto tensors = weights(3);
  std::vector<at::Tensor> const copies{tensors[0].clone(), tensors[1].clone(), tensors[2].clone()};
  auto const engine = manage(tensors, kWeightBytes);
  for (int pass = 0; pass < 3; ++pass) {
    for (plan::ModuleIndex module = 1; module <= 3; ++module) {
      engine->begin(module);
      EXPECT_TRUE(tensors[module - 1].equal(copies[module - 1]));
      engine->end(module);
    }
  }
  Status const status = engine->status();
  EXPECT_EQ(status.peak_device_bytes, kWeightBytes);
  EXPECT_EQ(status.loads, 9U);
  EXPECT_EQ(status.net_faults, 0U);
}

TEST_F(EngineOnCpu, TheNetBringsInAWeightThatIsReadDirectly) {
  auto tensors = weights(2);
  at::Tensor const copy = tensors[1].clone();
  at::Tensor const x = at::randn({2, kWidth});
  auto const engine = manage(tensors, kWeightBytes);
  EXPECT_TRUE(at::mm(x, tensors[1].t()).equal(at::mm(x, copy.t())));
  EXPECT_EQ(engine->status().net_faults, 1U);
}

TEST_F(EngineOnCpu, AWriteThroughTheNetReachesTheHome) {
  auto tensors = weights(2);
  at::Tensor const doubled = tensors[0] * 2;
  auto const engine = manage(tensors, kWeightBytes);
  tensors[0].mul_(2);
  (void)tensors[1].sum();  // sends the first out
  std::byte* home = nullptr;
  auto const block = engine->host_bytes(0, &home);
  EXPECT_TRUE(at::from_blob(home, {kWidth, kWidth}).equal(doubled));
  EXPECT_EQ(engine->status().bytes_out, kWeightBytes);
}

TEST_F(EngineOnCpu, AnOperatorThatNeedsMoreThanTheBudgetRaisesAndLosesNothing) {
  auto tensors = weights(2);
  at::Tensor const expected = tensors[0] + tensors[1];
  auto const engine = manage(tensors, kWeightBytes);
  EXPECT_THAT(message_of([&] { (void)(tensors[0] + tensors[1]); }), HasSubstr("there is no room for the group"));
  engine->resize(2 * kWeightBytes);
  EXPECT_TRUE((tensors[0] + tensors[1]).equal(expected));
}

TEST_F(EngineOnCpu, ABudgetBelowOneGroupNamesTheSmallest) {
  auto tensors = weights(2);
  try {
    (void)manage(tensors, kWeightBytes - 1);
    FAIL();
  } catch (BudgetError const& error) {
    EXPECT_EQ(error.smallest_bytes(), kWeightBytes);
    EXPECT_THAT(error.what(), HasSubstr("'layers.0'"));
  }
}

TEST_F(EngineOnCpu, TheEngineLivesAsLongAsAnyOfItsStorages) {
  auto tensors = weights(2);
  at::Tensor const copy = tensors[0].clone();
  std::weak_ptr<Engine> const engine = manage(tensors, kWeightBytes);
  tensors.pop_back();
  ASSERT_FALSE(engine.expired());
  EXPECT_TRUE((tensors[0] + 0).equal(copy));
  tensors.clear();
  EXPECT_TRUE(engine.expired());
}

TEST_F(EngineOnCpu, TwoTensorsOverTheSameBytesArePagedTogether) {
  at::Tensor const base = at::randn({kWidth, kWidth});
  std::vector<at::Tensor> tensors{base, base.t()};
  at::Tensor const copy = base.clone();
  auto const engine = manage(tensors, kWeightBytes);
  EXPECT_EQ(engine->page_count(), 1U);
  EXPECT_TRUE((tensors[1] + 0).equal(copy.t()));
}

TEST_F(EngineOnCpu, AnInterruptedUseEndsWithTheOneAroundIt) {
  auto tensors = weights(2);
  auto const engine = manage(tensors, kWeightBytes);
  engine->begin(0);
  engine->begin(1);  // whose end never comes
  engine->end(0);
  EXPECT_TRUE(engine->uses_of_this_thread().empty());
  engine->begin(2);
  engine->end(2);
}

TEST_F(EngineOnCpu, AGraphIsNotCapturedOverWeightsThatMove) {
  stub::install("stub");
  c10::Device const device(c10::kPrivateUse1, 0);
  auto tensors = weights(3);
  auto const few = manage(tensors, kWeightBytes, device);
  auto others = weights(3);
  auto const all = manage(others, 3 * kWeightBytes, device);
  stub::settings().capturing = true;
  std::string const message = message_of([&] { few->begin(1); });
  EXPECT_THAT(message, HasSubstr("a graph is being captured"));
  EXPECT_THAT(message, HasSubstr("Capture with a budget of all weights"));
  EXPECT_THAT(message_of([&] { all->begin(1); }), HasSubstr("a graph is being captured")) << "it is not there yet";
  stub::settings().capturing = false;
  few->begin(1);
  few->end(1);
  all->begin(1);
  all->end(1);
  stub::settings().capturing = true;
  all->begin(1);
  all->end(1);
  stub::settings().capturing = false;
  EXPECT_EQ(all->status().loads, 3U) << "the others came ahead";
}

}  // namespace
}  // namespace noria

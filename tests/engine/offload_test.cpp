// The C++ API: torch::nn modules and TorchScript under a budget, with nothing changed in them.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <noria/noria.h>
#include <noria/sim.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/passes/freeze_module.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "support/checkpoints.h"
#include "support/message_of.h"
#include "support/temp_dir.h"

namespace noria {
namespace {
using namespace noria::literals;
using ::testing::HasSubstr;
using testing::message_of;
using testing::safetensors_bytes;
using ::testing::StartsWith;
using testing::TempDir;
using testing::TestTensor;
using testing::write_file;

constexpr int64_t kWidth = 48;
constexpr int64_t kBlocks = 6;

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module("up", torch::nn::Linear(kWidth, 2 * kWidth))),
        down(register_module("down", torch::nn::Linear(2 * kWidth, kWidth))) {}
  at::Tensor forward(at::Tensor const& x) { return x + down(at::gelu(up(norm(x)))); }

  torch::nn::LayerNorm norm;
  torch::nn::Linear up;
  torch::nn::Linear down;
};
TORCH_MODULE(Block);

/// Its table is read as a weight of no module, and is the last layer's weight too.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    table = register_parameter("table", at::randn({kWidth, kWidth}));
    scale = register_buffer("scale", at::full({1}, 0.5));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < kBlocks; ++i) {
      blocks->push_back(Block());
    }
  }
  at::Tensor forward(at::Tensor const& x) {
    at::Tensor hidden = at::mm(x, table);
    for (auto const& block : *blocks) {
      hidden = block->as<BlockImpl>()->forward(hidden);
    }
    return at::mm(hidden, table.t()) * scale;
  }
  Block block(std::size_t i) const { return blocks->ptr<BlockImpl>(i); }

  at::Tensor table;
  at::Tensor scale;
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Net);

Net make_net() {
  torch::manual_seed(7);
  Net net;
  net->eval();
  return net;
}

Bytes bytes_of(torch::nn::Module const& module) {
  Bytes bytes = 0;
  for (at::Tensor const& tensor : module.parameters()) {
    bytes += tensor.nbytes();
  }
  return bytes;
}

/// The module's parameters as a safetensors file.
Checkpoint checkpoint_of(torch::nn::Module const& module, std::filesystem::path const& path,
                         std::string const& without = {}) {
  std::vector<TestTensor> tensors;
  for (auto const& item : module.named_parameters()) {
    at::Tensor const& tensor = item.value();
    TestTensor entry{.name = item.key(), .dtype = "F32", .shape = {}, .bytes = {}};
    entry.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
    entry.bytes.assign(static_cast<char const*>(tensor.const_data_ptr()), tensor.nbytes());
    if (entry.name != without) {
      tensors.push_back(std::move(entry));
    }
  }
  write_file(path, safetensors_bytes(tensors));
  return Checkpoint::open(path);
}

class OffloadOn : public ::testing::TestWithParam<char const*> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);  // the models are tiny
    if (std::string_view(GetParam()) == "sim") {
      sim::enable({.checker = "raise"});
    }
    device_ = c10::Device(std::string_view(GetParam()) == "sim" ? "sim:0" : "cpu");
    x_ = at::randn({5, kWidth}).to(*device_);
    Net resident = make_net();
    resident->to(*device_);
    wanted_ = resident->forward(x_).cpu();
  }

  [[nodiscard]] OffloadOptions quarter() const { return {.device = *device_, .budget = bytes_of(*make_net()) / 4}; }
  void expect_same(Net net) { EXPECT_TRUE(net->forward(x_).cpu().equal(wanted_)); }

  c10::NoGradGuard no_grad_;
  std::optional<c10::Device> device_;
  at::Tensor x_;
  at::Tensor wanted_;
};

INSTANTIATE_TEST_SUITE_P(Devices, OffloadOn, ::testing::Values("cpu", "sim"),
                         [](auto const& info) { return std::string(info.param); });

TEST_P(OffloadOn, AQuarterOfTheWeightsGivesTheBitsOfTheResidentModel) {
  Net net = make_net();
  Offload const offload(net, quarter());
  for (int pass = 0; pass < 4; ++pass) {
    expect_same(net);
  }
  Status const status = offload.status();
  EXPECT_LE(status.peak_device_bytes, quarter().budget->bytes);
  EXPECT_GT(status.streamed_bytes, 0U);
  EXPECT_GT(status.loads, status.groups.size());
  EXPECT_EQ(net->table.device(), *device_);
}

TEST_P(OffloadOn, AnEmptiedModelRunsStraightFromItsCheckpoint) {
  TempDir const folder;
  Checkpoint const checkpoint = checkpoint_of(*make_net(), folder / "model.safetensors");
  Net net = make_net();
  empty_weights(net);
  Offload const offload(net, checkpoint, quarter());
  for (int pass = 0; pass < 3; ++pass) {
    expect_same(net);
  }
  Status const status = offload.status();
  EXPECT_EQ(status.disk_bytes, bytes_of(*make_net()));
  EXPECT_LE(status.peak_device_bytes, quarter().budget->bytes);
}

TEST_P(OffloadOn, TheCheckpointReplacesWhatTheModelHolds) {
  TempDir const folder;
  Checkpoint const checkpoint = checkpoint_of(*make_net(), folder / "model.safetensors");
  Net net = make_net();
  net->table.zero_();
  OffloadOptions options = quarter();
  options.host_budget = 1_GiB;  // so that some groups are brought to host memory at once
  Offload const offload(net, checkpoint, options);
  expect_same(net);
}

TEST_P(OffloadOn, AFolderKeepsTheWeightsAndIsUsedAgain) {
  TempDir const folder;
  OffloadOptions options = quarter();
  options.disk = folder / "weights";
  for (int run = 0; run < 2; ++run) {
    Net net = make_net();
    Offload const offload(net, options);
    expect_same(net);
    EXPECT_GE(offload.status().disk_bytes, bytes_of(*make_net()));
  }
}

TEST_P(OffloadOn, AScopeBringsAllWeightsOfABlock) {
  Net net = make_net();
  Offload const offload(net, quarter());
  at::Tensor const weight = net->block(2)->up->weight;
  {
    auto const use = offload.use(net->block(2));
    EXPECT_NE(weight.const_data_ptr(), nullptr);
    EXPECT_NE(net->block(2)->down->bias.const_data_ptr(), nullptr);
    std::uint64_t const loads = offload.status().loads;
    static_cast<void>(net->block(2)->forward(x_));
    EXPECT_EQ(offload.status().net_faults, 0U);
    EXPECT_GE(offload.status().loads, loads);
  }
  expect_same(net);  // sends it out
  EXPECT_THAT(message_of([&] { static_cast<void>(weight.const_data_ptr()); }),
              StartsWith("EvictedWeightError: blocks.2.up.weight"));
}

TEST_P(OffloadOn, AnExceptionInsideAScopeLeavesRoomForTheNext) {
  Net net = make_net();
  OffloadOptions options = quarter();
  options.granularity = Granularity::kBlock;
  options.budget = bytes_of(*net->block(0)) + net->table.nbytes() + 2_KiB;  // one block, and what is around it
  Offload const offload(net, options);
  for (std::size_t i = 0; i < 3; ++i) {
    auto const broken = [&] {
      auto const use = offload.use(net->block(i));
      throw std::runtime_error("in the middle");
    };
    EXPECT_THROW(broken(), std::runtime_error);
  }
  expect_same(net);
}

TEST_P(OffloadOn, AScopeThatDoesNotFitSaysWhatWould) {
  Net net = make_net();
  Offload const offload(net, quarter());
  EXPECT_THAT(message_of([&] { auto const use = offload.use(net); }), HasSubstr("Give a budget of at least"));
  expect_same(net);
}

TEST_P(OffloadOn, ResidentWeightsKeepTheirAddress) {
  Net net = make_net();
  OffloadOptions options = quarter();
  options.budget = bytes_of(*net) / 2;
  Offload const offload(net, options);
  auto const resident = offload.resident(net->block(3)->up);
  void const* const address = net->block(3)->up->weight.const_data_ptr();
  for (int pass = 0; pass < 3; ++pass) {
    expect_same(net);
    EXPECT_EQ(net->block(3)->up->weight.const_data_ptr(), address);
  }
}

TEST_P(OffloadOn, ABudgetThatCannotWorkNamesTheSmallestAndChangesNothing) {
  Net net = make_net();
  OffloadOptions options = quarter();
  options.budget = 1000;
  try {
    Offload const offload(net, options);
    FAIL() << "1000 bytes are enough";
  } catch (BudgetError const& error) {
    EXPECT_GE(error.smallest_bytes(), net->block(0)->up->weight.nbytes());
    options.budget = error.smallest_bytes();
  }
  EXPECT_TRUE(net->table.is_cpu());
  EXPECT_NE(net->table.const_data_ptr(), nullptr);
  Offload const offload(net, options);
  expect_same(net);
}

TEST_P(OffloadOn, AModelIsOffloadedOnce) {
  Net net = make_net();
  Offload offload(net, quarter());
  EXPECT_THROW(Offload(net, quarter()), std::invalid_argument);
  EXPECT_THAT(message_of([&] { Offload const second(net->block(1), quarter()); }),
              HasSubstr("'norm.weight' of noria::(anonymous namespace)::BlockImpl is offloaded by noria already"));
  expect_same(net);
  offload.remove();
  Offload const again(net, quarter());
  expect_same(net);
}

TEST_P(OffloadOn, RemoveGivesBackTheTensorsWithWhatWasWritten) {
  Net net = make_net();
  at::Tensor const table = net->table;
  at::Tensor const doubled = table * 2;
  Offload offload(net, quarter());
  expect_same(net);
  net->table.mul_(2);
  offload.remove();
  offload.remove();
  EXPECT_TRUE(net->table.is_same(table));
  EXPECT_TRUE(table.is_cpu());
  EXPECT_TRUE(table.equal(doubled));
  EXPECT_EQ(offload.status().device_bytes, 0U);
  EXPECT_THROW(offload.flush(), Error);
  EXPECT_THROW(offload.resize(1_GiB), Error);
  EXPECT_THROW(static_cast<void>(offload.use(net)), Error);
  EXPECT_THROW(static_cast<void>(offload.trace("unused.json")), Error);
}

TEST_P(OffloadOn, RemoveToTheDeviceLeavesAResidentModel) {
  Net net = make_net();
  Offload offload(net, quarter());
  offload.remove(*device_);
  EXPECT_EQ(net->table.device(), *device_);
  EXPECT_EQ(net->block(0)->up->weight.device(), *device_);
  expect_same(net);
}

TEST_P(OffloadOn, RemoveInsideAScopeIsRefused) {
  Net net = make_net();
  Offload offload(net, quarter());
  {
    auto const use = offload.use(net->block(1)->up);
    EXPECT_THROW(offload.remove(), Error);
  }
  expect_same(net);
  offload.remove();
}

TEST_P(OffloadOn, DroppingTheHandleChangesNothing) {
  Net net = make_net();
  {
    Offload const offload(net, quarter());
  }
  expect_same(net);
  auto const evicted = [](at::Tensor const& weight) {
    return message_of([&] { static_cast<void>(weight.const_data_ptr()); }).starts_with("EvictedWeightError: ");
  };
  EXPECT_GT(std::ranges::count_if(net->parameters(), evicted), 0);
}

TEST_P(OffloadOn, TheModelMayDieFirst) {
  Net net = make_net();
  std::weak_ptr<torch::nn::Module> const module = net.ptr();
  Offload offload(net, quarter());
  expect_same(net);
  Bytes const weights = offload.status().weights_bytes;
  net = nullptr;
  EXPECT_TRUE(module.expired());
  EXPECT_EQ(offload.status().weights_bytes, weights);
  offload.remove();
  EXPECT_EQ(offload.status().device_bytes, 0U);
}

TEST_P(OffloadOn, AModuleOfAnotherModelIsRefused) {
  Net net = make_net();
  Net other = make_net();
  Offload const offload(net, quarter());
  EXPECT_THROW(static_cast<void>(offload.use(other)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(offload.resident(other->block(0))), std::invalid_argument);
}

TEST_P(OffloadOn, WrongArgumentsAreRefused) {
  Net net = make_net();
  EXPECT_THROW(Offload(Net(nullptr), quarter()), std::invalid_argument);
  EXPECT_THROW(Offload(net, OffloadOptions{.device = c10::kMeta}), std::invalid_argument);
  TempDir const folder;
  OffloadOptions two_homes = quarter();
  two_homes.disk = folder / "weights";
  EXPECT_THROW(Offload(net, checkpoint_of(*net, folder / "model.safetensors"), two_homes), std::invalid_argument);
  expect_same([&] {
    net->to(*device_);
    return net;
  }());
}

TEST_P(OffloadOn, AHandleThatWasMovedFromSaysSo) {
  Net net = make_net();
  Offload first(net, quarter());
  Offload const second = std::move(first);
  EXPECT_THROW(static_cast<void>(first.status()), Error);  // NOLINT(bugprone-use-after-move)
  EXPECT_GT(second.status().weights_bytes, 0U);
}

TEST_P(OffloadOn, AResizeTakesEffectAndAnImpossibleOneDoesNot) {
  Net net = make_net();
  Offload offload(net, quarter());
  EXPECT_THROW(offload.resize(1000), BudgetError);
  EXPECT_EQ(offload.status().budget_bytes, quarter().budget->bytes);
  offload.resize(parse_byte_amount("1GiB"));
  expect_same(net);
  EXPECT_EQ(offload.status().streamed_bytes, 0U);
}

TEST_P(OffloadOn, ATraceHasASliceForEveryLoadAndUse) {
  TempDir const folder;
  Net net = make_net();
  Offload const offload(net, quarter());
  {
    auto const trace = offload.trace(folder / "trace.json");
    expect_same(net);
  }
  auto const trace = nlohmann::json::parse(testing::read_file(folder / "trace.json"));
  std::set<std::string> names;
  std::set<std::string> rows;
  for (auto const& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") {
      names.insert(event.at("name"));
      rows.insert(event.at("cat"));
    }
  }
  EXPECT_EQ(names.size(), offload.status().groups.size());
  EXPECT_EQ(rows, (std::set<std::string>{"compute", "copy in"}));
}

TEST_P(OffloadOn, ATraceThatCannotBeWrittenSaysSo) {
  Net net = make_net();
  Offload const offload(net, quarter());
  auto trace = offload.trace("/nowhere/at/all.json");
  EXPECT_THROW(trace.write(), StorageError);
  trace.write();
}

TEST_P(OffloadOn, TwoThreadsRunOneModel) {
  Net net = make_net();
  OffloadOptions options = quarter();
  options.budget = bytes_of(*net) / 2;
  Offload const offload(net, options);
  std::array<at::Tensor, 2> out;
  {
    std::vector<std::jthread> threads;
    threads.reserve(out.size());
    for (at::Tensor& result : out) {
      threads.emplace_back([&] {
        at::init_num_threads();
        c10::NoGradGuard const no_grad;
        result = net->forward(x_);
      });
    }
  }
  EXPECT_TRUE(out[0].cpu().equal(wanted_));
  EXPECT_TRUE(out[1].cpu().equal(wanted_));
}

TEST_P(OffloadOn, GradientsAreThoseOfTheResidentModel) {
  c10::AutoGradMode const with_grad(true);
  Net resident = make_net();
  resident->to(*device_);
  resident->forward(x_).sum().backward();
  Net net = make_net();
  Offload const offload(net, quarter());
  net->forward(x_).sum().backward();
  auto const wanted = resident->named_parameters();
  for (auto const& item : net->named_parameters()) {
    EXPECT_EQ(item.value().grad().device(), *device_);
    EXPECT_TRUE(item.value().grad().cpu().equal(wanted[item.key()].grad().cpu())) << item.key();
  }
}

/// Two linear layers and a product, as a scripted module would hold them.
torch::jit::Module make_script() {
  torch::manual_seed(3);
  torch::jit::Module root("Model");
  for (char const* const name : {"first", "second"}) {
    torch::jit::Module layer("Layer");
    layer.register_parameter("weight", at::randn({kWidth, kWidth}), false);
    layer.register_parameter("bias", at::randn({kWidth}), false);
    layer.define("def forward(self, x):\n    return torch.linear(x, self.weight, self.bias).relu()\n");
    root.register_module(name, layer);
  }
  root.register_parameter("scale", at::randn({kWidth}), false);
  root.define("def forward(self, x):\n    return self.second.forward(self.first.forward(x)) * self.scale\n");
  return root;
}

TEST_P(OffloadOn, TorchScriptRunsAsItIs) {
  torch::jit::Module resident = make_script();
  resident.to(*device_);
  at::Tensor const wanted = resident.forward({x_}).toTensor().cpu();
  torch::jit::Module script = make_script();
  Offload offload(script, {.device = *device_, .budget = kWidth * kWidth * 4 + 2048});
  for (int pass = 0; pass < 4; ++pass) {
    EXPECT_TRUE(script.forward({x_}).toTensor().cpu().equal(wanted));
  }
  EXPECT_LE(offload.status().peak_device_bytes, offload.status().budget_bytes);
  EXPECT_GE(offload.status().loads, 6U);
  {
    auto const use = offload.use(script.attr("first").toModule());
    EXPECT_NE(script.attr("first").toModule().attr("weight").toTensor().const_data_ptr(), nullptr);
  }
  offload.remove();
  EXPECT_TRUE(script.attr("scale").toTensor().is_cpu());
}

TEST_P(OffloadOn, AFrozenScriptIsRefusedAndSaysWhatToDo) {
  torch::jit::Module const frozen = torch::jit::freeze_module(make_script());
  EXPECT_THAT(message_of([&] { Offload const offload(frozen, quarter()); }), HasSubstr("without torch.jit.freeze"));
}

TEST(Weights, AnEmptiedParameterKeepsItsShapeAndRaises) {
  Net net = make_net();
  empty_weights(net);
  EXPECT_EQ(net->table.sizes(), (std::vector<int64_t>{kWidth, kWidth}));
  EXPECT_THAT(message_of([&] { static_cast<void>(net->table.sum()); }),
              HasSubstr("'table' were dropped by noria::empty_weights"));
  EXPECT_EQ(net->scale.item<float>(), 0.5F);
  EXPECT_THAT(message_of([&] { Offload const offload(net, {.budget = 1_GiB}); }), HasSubstr("'table'"));
}

TEST(Weights, ACheckpointFillsEmptiedOrdinaryAndMetaParameters) {
  c10::NoGradGuard const no_grad;
  TempDir const folder;
  Net source = make_net();
  Checkpoint const checkpoint = checkpoint_of(*source, folder / "model.safetensors");
  Net net = make_net();
  net->block(0)->up->weight.zero_();
  empty_weights(net->block(1));
  at::Tensor const handle = net->block(1)->up->weight;
  load_weights(net, checkpoint);
  auto const wanted = source->named_parameters();
  for (auto const& item : net->named_parameters()) {
    EXPECT_TRUE(item.value().equal(wanted[item.key()])) << item.key();
  }
  EXPECT_TRUE(handle.equal(source->block(1)->up->weight));

  torch::nn::Module on_meta;
  at::Tensor const table = on_meta.register_parameter("table", at::empty({kWidth, kWidth}, at::kMeta));
  load_weights(on_meta, checkpoint);
  EXPECT_TRUE(table.is_cpu());
  EXPECT_TRUE(table.equal(source->table));
}

TEST(Weights, WhatTheCheckpointLacksOrHoldsOtherwiseIsNamedBeforeAnythingChanges) {
  TempDir const folder;
  Net net = make_net();
  Checkpoint const lacking = checkpoint_of(*net, folder / "lacking.safetensors", "blocks.4.up.bias");
  EXPECT_THAT(message_of([&] { load_weights(net, lacking); }), HasSubstr("the checkpoint has no blocks.4.up.bias"));
  EXPECT_THROW(Offload(net, lacking, {.budget = 1_GiB}), IntegrityError);
  torch::nn::Module other;
  at::Tensor const table = other.register_parameter("table", at::zeros({kWidth, 2}));
  EXPECT_THAT(message_of([&] { load_weights(other, lacking); }),
              HasSubstr("'table' is [48, 2] in the model and [48, 48] in the checkpoint"));
  torch::nn::Module numbers;
  numbers.register_parameter("table", at::zeros({kWidth, kWidth}, at::kInt), /*requires_grad=*/false);
  EXPECT_THAT(message_of([&] { load_weights(numbers, lacking); }), HasSubstr("Int in the model and F32"));
  EXPECT_EQ(table.abs().sum().item<float>(), 0.0F);
  EXPECT_NE(net->table.const_data_ptr(), nullptr);
}

TEST(Weights, FloatingPointTypesAreConverted) {
  c10::NoGradGuard const no_grad;
  TempDir const folder;
  Net source = make_net();
  Checkpoint const checkpoint = checkpoint_of(*source, folder / "model.safetensors");
  at::Tensor const wanted = source->table.to(at::kHalf);
  torch::nn::Module half;
  at::Tensor const table = half.register_parameter("table", at::zeros({kWidth, kWidth}, at::kHalf));
  load_weights(half, checkpoint);
  EXPECT_TRUE(table.equal(wanted));
  table.zero_();
  Offload const offload(half, checkpoint, {.budget = 1_MiB});
  EXPECT_TRUE((table + 0).equal(wanted));
}

TEST(Weights, AParameterOnMetaRunsFromItsCheckpoint) {
  c10::NoGradGuard const no_grad;
  TempDir const folder;
  Net source = make_net();
  Checkpoint const checkpoint = checkpoint_of(*source, folder / "model.safetensors");
  torch::nn::Module on_meta;
  at::Tensor const table = on_meta.register_parameter("table", at::empty({kWidth, kWidth}, at::kMeta));
  Offload const offload(on_meta, checkpoint, {.budget = 1_MiB});
  EXPECT_TRUE(table.is_cpu());
  EXPECT_TRUE((table + 0).equal(source->table));
}

}  // namespace
}  // namespace noria

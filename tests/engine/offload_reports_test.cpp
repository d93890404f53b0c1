// What users of offloaders reported, as C++ programs meet it. "Row" is the number in docs/reports.md; each test begins
// with the report and what is expected. Every program runs with nothing but the operator net, and with scopes around
// the parts that run; its bits must be those of the same model resident on the same device.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <noria/noria.h>
#include <noria/sim.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <sstream>
#include <thread>

#include "sim/torch/backend.h"
#include "support/message_of.h"

namespace noria {
namespace {
using namespace noria::literals;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::StartsWith;

constexpr int64_t kWidth = 32;
constexpr int64_t kChannels = 8;
constexpr int kPasses = 3;

/// Runs parts of a model as a program does: each in a scope of its own, or just so.
class Parts {
 public:
  Parts() = default;
  explicit Parts(Offload const& offload) : offload_(&offload) {}

  template <typename Part, typename Work>
  auto in(Part const& part, Work const& work) const {
    if (offload_ == nullptr) {
      return work();
    }
    auto const use = offload_->use(part);
    return work();
  }
  template <typename Part>
  at::Tensor operator()(Part part, at::Tensor const& x) const {
    return in(part, [&] { return part->forward(x); });
  }

 private:
  Offload const* offload_ = nullptr;
};

template <typename Net>
Net make() {
  torch::manual_seed(7);
  Net net;
  net->eval();
  return net;
}

/// All values of several tensors in a row.
at::Tensor together(std::vector<at::Tensor> const& tensors) {
  std::vector<at::Tensor> flat;
  flat.reserve(tensors.size());
  for (at::Tensor const& tensor : tensors) {
    flat.push_back(tensor.detach().cpu().flatten().to(at::kDouble));  // exact for every type used here
  }
  return at::cat(flat);
}

/// Parameters, then buffers, then gradients.
at::Tensor state_of(torch::nn::Module const& module) {
  std::vector<at::Tensor> tensors = module.parameters();
  for (at::Tensor const& buffer : module.buffers()) {
    tensors.push_back(buffer);
  }
  for (at::Tensor const& parameter : module.parameters()) {
    if (parameter.grad().defined()) {
      tensors.push_back(parameter.grad());
    }
  }
  return together(tensors);
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t hidden = 2 * kWidth)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module("up", torch::nn::Linear(kWidth, hidden))),
        down(register_module("down", torch::nn::Linear(hidden, kWidth))) {}
  at::Tensor forward(at::Tensor const& x) { return x + down(at::gelu(up(norm(x)))); }

  torch::nn::LayerNorm norm;
  torch::nn::Linear up;
  torch::nn::Linear down;
};
TORCH_MODULE(Block);

/// A stem, a list of blocks and a head.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(std::vector<int64_t> const& hidden = std::vector<int64_t>(5, 2 * kWidth))
      : stem(register_module("stem", torch::nn::Linear(kWidth, kWidth))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        head(register_module("head", torch::nn::Linear(kWidth, kWidth))) {
    for (int64_t size : hidden) {
      blocks->push_back(Block(size));
    }
  }
  at::Tensor forward(at::Tensor const& x, Parts const& parts = {}) {
    at::Tensor hidden = parts(stem, x);
    for (std::size_t i = 0; i < blocks->size(); ++i) {
      hidden = parts(block(i), hidden);
    }
    return parts(head, hidden);
  }
  Block block(std::size_t i) const { return blocks->ptr<BlockImpl>(i); }

  torch::nn::Linear stem;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(Stack);

class OffloadReports : public ::testing::TestWithParam<std::tuple<char const*, char const*>> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);              // the models are tiny
    sim::enable({.checker = "record"});  // on the cpu too: before the first backward of the process
    scopes_ = std::string_view(std::get<0>(GetParam())) == "scopes";
    device_ = c10::Device(std::string_view(std::get<1>(GetParam())) == "sim" ? "sim:0" : "cpu");
  }
  void TearDown() override {
    for (sim::Race const& race : simtorch::runtime().races()) {
      ADD_FAILURE() << describe(race);
    }
    for (sim::Finding const& finding : simtorch::runtime().findings()) {
      ADD_FAILURE() << finding.text;
    }
  }

  [[nodiscard]] at::Tensor input(at::IntArrayRef sizes) const {
    torch::manual_seed(11);
    return at::randn(sizes).to(*device_);
  }
  [[nodiscard]] Parts parts(Offload const& offload) const { return scopes_ ? Parts(offload) : Parts(); }
  [[nodiscard]] OffloadOptions options(Granularity granularity, Bytes budget) const {
    return {.device = *device_, .budget = budget, .granularity = granularity};
  }

  [[nodiscard]] Bytes smallest_budget(torch::nn::Module const& module, Granularity granularity) const {
    try {
      Offload const never(module, options(granularity, 1));
    } catch (BudgetError const& error) {
      return error.smallest_bytes();
    }
    throw std::logic_error("one byte is enough");
  }
  /// The smallest budget by block, half of the weights by block and by layer; with any of them a block's scope fits.
  template <typename Net>
  [[nodiscard]] std::vector<OffloadOptions> scope_settings() const {
    auto const net = make<Net>();
    Bytes const smallest = smallest_budget(*net, Granularity::kBlock);
    Bytes const half = Offload(net, options(Granularity::kBlock, 1_GiB)).status().weights_bytes / 2;
    return {options(Granularity::kBlock, smallest), options(Granularity::kBlock, std::max(half, smallest)),
            options(Granularity::kLeaf, std::max(half, smallest))};
  }
  /// And the smallest by layer for programs without scopes.
  template <typename Net>
  [[nodiscard]] std::vector<OffloadOptions> settings() const {
    std::vector<OffloadOptions> out = scope_settings<Net>();
    if (!scopes_) {
      out.push_back(options(Granularity::kLeaf, smallest_budget(*make<Net>(), Granularity::kLeaf)));
    }
    return out;
  }
  /// `work` gives the same bits, pass for pass, on an offloaded model as on a resident one, and leaves the same state.
  template <typename Net>
  void expect_resident_bits(std::function<at::Tensor(Net&, Parts const&)> const& work) const {
    auto resident = make<Net>();
    resident->to(*device_);
    std::vector<at::Tensor> wanted;
    wanted.reserve(kPasses);
    for (int pass = 0; pass < kPasses; ++pass) {
      wanted.push_back(work(resident, Parts()).cpu());
    }
    for (OffloadOptions const& how : settings<Net>()) {
      SCOPED_TRACE(described(how));
      auto net = make<Net>();
      Offload offload(net, how);
      for (int pass = 0; pass < kPasses; ++pass) {
        EXPECT_TRUE(work(net, parts(offload)).cpu().equal(wanted[static_cast<std::size_t>(pass)])) << "pass " << pass;
      }
      EXPECT_LE(offload.status().peak_device_bytes, how.budget->bytes);
      EXPECT_GT(offload.status().loads, 0U);
      EXPECT_TRUE(state_of(*net).equal(state_of(*resident)));
      offload.remove();
      EXPECT_TRUE(state_of(*net).equal(state_of(*resident)));
    }
  }
  static std::string described(OffloadOptions const& how) {
    return std::string(how.granularity == Granularity::kLeaf ? "by layer" : "by block") + ", " +
           std::to_string(how.budget->bytes) + " bytes";
  }

  c10::NoGradGuard no_grad_;
  bool scopes_ = false;
  std::optional<c10::Device> device_;
};

INSTANTIATE_TEST_SUITE_P(Modes, OffloadReports,
                         ::testing::Combine(::testing::Values("operators", "scopes"), ::testing::Values("cpu", "sim")),
                         [](auto const& info) {
                           return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
                         });

// --- Entry points, and weights that are read without their module's forward --------------------------------------

torch::nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel) {
  torch::nn::Conv2d layer(torch::nn::Conv2dOptions(in, out, kernel).padding(kernel / 2));
  return layer;
}

struct CoderImpl : torch::nn::Module {
  CoderImpl(int64_t in, int64_t out)
      : conv_in(register_module("conv_in", conv(in, kChannels, 3))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        conv_out(register_module("conv_out", conv(kChannels, out, 3))) {
    for (int i = 0; i < 3; ++i) {
      blocks->push_back(conv(kChannels, kChannels, 3));
    }
  }
  at::Tensor forward(at::Tensor const& x, Parts const& parts) {
    at::Tensor hidden = parts(conv_in, x);
    for (std::size_t i = 0; i < blocks->size(); ++i) {
      hidden = at::silu(parts(blocks->ptr<torch::nn::Conv2dImpl>(i), hidden));
    }
    return parts(conv_out, hidden);
  }

  torch::nn::Conv2d conv_in;
  torch::nn::ModuleList blocks;
  torch::nn::Conv2d conv_out;
};
TORCH_MODULE(Coder);

/// Has no forward.
struct AutoencoderImpl : torch::nn::Module {
  AutoencoderImpl()
      : encoder(register_module("encoder", Coder(3, 4))),
        decoder(register_module("decoder", Coder(4, 3))),
        quant_conv(register_module("quant_conv", conv(4, 4, 1))),
        post_quant_conv(register_module("post_quant_conv", conv(4, 4, 1))) {}
  at::Tensor encode(at::Tensor const& x, Parts const& parts) { return parts(quant_conv, encoder->forward(x, parts)); }
  at::Tensor decode(at::Tensor const& z, Parts const& parts) {
    return decoder->forward(parts(post_quant_conv, z), parts);
  }

  Coder encoder;
  Coder decoder;
  torch::nn::Conv2d quant_conv;
  torch::nn::Conv2d post_quant_conv;
};
TORCH_MODULE(Autoencoder);

// diffusers#11086: a hook at the root never fires for decode(). Every entry point works.
TEST_P(OffloadReports, Row2AutoencoderIsEnteredByEncodeAndDecodeOnly) {
  at::Tensor const image = input({2, 3, 8, 8});
  expect_resident_bits<Autoencoder>([&](Autoencoder& net, Parts const& parts) {
    at::Tensor const first = net->decode(image.narrow(1, 0, 1).expand({2, 4, 8, 8}), parts);
    at::Tensor const latent = net->encode(image, parts);
    return together({first, latent, net->decode(latent, parts)});
  });
}

// diffusers#12096: the first tiled pass teaches a wrong order. Tiles change nothing, however often they come.
TEST_P(OffloadReports, Row25TiledDecodingIsRightEveryTime) {
  at::Tensor const latent = input({1, 4, 16, 16});
  expect_resident_bits<Autoencoder>([&](Autoencoder& net, Parts const& parts) {
    std::vector<at::Tensor> tiles;
    tiles.reserve(18);
    for (int64_t i = 0; i < 16; ++i) {
      tiles.push_back(net->decode(latent.narrow(2, i / 4 * 4, 4).narrow(3, i % 4 * 4, 4), parts));
    }
    tiles.push_back(net->decode(latent, parts));
    tiles.push_back(net->encode(tiles.back(), parts));
    return together(tiles);
  });
}

// diffusers#10797: one component of three is offloaded, the others are resident. They work together.
TEST_P(OffloadReports, Row26OneComponentOfThreeIsOffloaded) {
  at::Tensor const image = input({2, 3, 8, 8});
  auto coder = make<Autoencoder>();
  auto upscaler = make<Stack>();
  coder->to(*device_);
  upscaler->to(*device_);
  expect_resident_bits<Stack>([&](Stack& denoiser, Parts const& parts) {
    at::Tensor const latent = coder->encode(image, Parts()).reshape({-1, kWidth});
    at::Tensor const denoised = upscaler->forward(denoiser->forward(latent, parts));
    return coder->decode(denoised.reshape({2, 4, 8, 8}), Parts());
  });
}

struct AttentiveImpl : torch::nn::Module {
  AttentiveImpl()
      : layers(register_module("layers", torch::nn::ModuleList())), block(register_module("block", Block())) {
    for (int i = 0; i < 3; ++i) {
      layers->push_back(torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(kWidth, 4)));
    }
  }
  at::Tensor forward(at::Tensor x, Parts const& parts) {
    for (std::size_t i = 0; i < layers->size(); ++i) {
      auto const layer = layers->ptr<torch::nn::MultiheadAttentionImpl>(i);
      x = x + parts.in(layer, [&] { return std::get<0>(layer->forward(x, x, x)); });
    }
    return parts(block, x);
  }

  torch::nn::ModuleList layers;
  Block block;
};
TORCH_MODULE(Attentive);

// accelerate#3542: nn.MultiheadAttention reads out_proj.weight itself, and no hook of out_proj fires. That is safe.
TEST_P(OffloadReports, Row28MultiheadAttentionReadsItsProjectionDirectly) {
  at::Tensor const x = input({5, 2, kWidth});
  expect_resident_bits<Attentive>([&](Attentive& net, Parts const& parts) { return net->forward(x, parts); });
}

/// A learned query that attends to the patches, as SigLIP pools.
struct PoolingHeadImpl : torch::nn::Module {
  PoolingHeadImpl()
      : probe(register_parameter("probe", at::randn({1, 1, kWidth}))),
        attention(register_module("attention",
                                  torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(kWidth, 2)))),
        block(register_module("block", Block())) {}
  at::Tensor forward(at::Tensor const& x) {
    return block(std::get<0>(attention->forward(probe.expand({1, x.size(1), kWidth}), x, x)));
  }

  at::Tensor probe;
  torch::nn::MultiheadAttention attention;
  Block block;
};
TORCH_MODULE(PoolingHead);

struct PooledImpl : torch::nn::Module {
  PooledImpl()
      : tower(register_module("tower", Stack())),
        heads(register_module("heads", torch::nn::ModuleList(PoolingHead(), PoolingHead()))) {}
  at::Tensor forward(at::Tensor const& x, Parts const& parts) {
    at::Tensor const patches = tower->forward(x, parts);
    return at::cat({parts(heads->ptr<PoolingHeadImpl>(0), patches), parts(heads->ptr<PoolingHeadImpl>(1), patches)});
  }

  Stack tower;
  torch::nn::ModuleList heads;
};
TORCH_MODULE(Pooled);

// diffusers#14551: the pooling head of SigLIP, an attention with a bare query, fails by layer. It is right.
TEST_P(OffloadReports, Row29AnAttentionPoolingHeadWithABareQuery) {
  at::Tensor const x = input({6, 2, kWidth});
  expect_resident_bits<Pooled>([&](Pooled& net, Parts const& parts) { return net->forward(x, parts); });
}

/// Its weight is computed from a direction and a length.
struct NormedConvImpl : torch::nn::Module {
  NormedConvImpl()
      : direction(register_parameter("direction", at::randn({kChannels, kChannels, 3}))),
        length(register_parameter("length", at::rand({kChannels, 1, 1}) + 0.5)),
        bias(register_parameter("bias", at::randn({kChannels}))) {}
  at::Tensor forward(at::Tensor const& x) {
    at::Tensor const by_operator = at::_weight_norm(direction, length, 0);
    at::Tensor const by_hand = direction * (length / direction.flatten(1).norm(2, 1).reshape({-1, 1, 1}));
    return at::tanh(at::conv1d(x, by_operator, bias, 1, 1) + at::conv1d(x, by_hand, {}, 1, 1));
  }

  at::Tensor direction;
  at::Tensor length;
  at::Tensor bias;
};
TORCH_MODULE(NormedConv);

struct VocoderImpl : torch::nn::Module {
  VocoderImpl() : inner(register_module("inner", torch::nn::ModuleList())) {
    for (int i = 0; i < 3; ++i) {
      inner->push_back(torch::nn::ModuleList(NormedConv(), NormedConv()));
    }
  }
  at::Tensor forward(at::Tensor x, Parts const& parts) {
    for (auto const& list : *inner) {
      for (auto const& layer : *list->as<torch::nn::ModuleListImpl>()) {
        x = parts(std::dynamic_pointer_cast<NormedConvImpl>(layer), x);
      }
    }
    return x;
  }

  torch::nn::ModuleList inner;
};
TORCH_MODULE(Vocoder);

// Skipped tests of four diffusers models: weight-normed layers inside a nested encoder. They are right.
TEST_P(OffloadReports, Row31AWeightComputedFromTwoParameters) {
  at::Tensor const x = input({1, kChannels, 9});
  expect_resident_bits<Vocoder>([&](Vocoder& net, Parts const& parts) { return net->forward(x, parts); });
}

struct FunctionalImpl : torch::nn::Module {
  FunctionalImpl() : layers(register_module("layers", torch::nn::ModuleList())) {
    for (int i = 0; i < 4; ++i) {
      layers->push_back(torch::nn::Conv1d(torch::nn::Conv1dOptions(kChannels, kChannels, 3)));
    }
  }
  at::Tensor forward(at::Tensor x, Parts const& parts) {
    for (std::size_t i = 0; i < layers->size(); ++i) {
      auto const layer = layers->ptr<torch::nn::Conv1dImpl>(i);
      x = parts.in(layer, [&] { return torch::conv1d(x, layer->weight, layer->bias, 1, 1); });
    }
    return x;
  }

  torch::nn::ModuleList layers;
};
TORCH_MODULE(Functional);

// transformers#46978: conv1d(x, conv->weight) runs no forward, and the result was silently wrong. It is right.
TEST_P(OffloadReports, Row32AFunctionalCallWithAChildsWeight) {
  at::Tensor const x = input({2, kChannels, 9});
  expect_resident_bits<Functional>([&](Functional& net, Parts const& parts) { return net->forward(x, parts); });
}

struct BareImpl : torch::nn::Module {
  BareImpl()
      : tokens(register_parameter("tokens", at::randn({4, kWidth}))),
        scale(register_parameter("scale", at::randn({kWidth}))),
        frequencies(register_buffer("frequencies", at::rand({kWidth}))),
        steps(register_buffer("steps", at::zeros({}, at::kLong))),
        blocks(register_module("blocks", torch::nn::ModuleList(Block(), Block(), Block()))) {}
  at::Tensor forward(at::Tensor const& x, Parts const& parts) {
    steps.add_(1);
    at::Tensor hidden = at::cat({tokens, x}) * scale;
    for (std::size_t i = 0; i < blocks->size(); ++i) {
      hidden = parts(blocks->ptr<BlockImpl>(i), hidden) + at::sin(frequencies * steps);
    }
    return hidden;
  }

  at::Tensor tokens;
  at::Tensor scale;
  at::Tensor frequencies;
  at::Tensor steps;
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Bare);

// ComfyUI#15251: register tokens and scales of the root stay on the cpu. Bare tensors come like any weight.
TEST_P(OffloadReports, Row34BareParametersAndBuffersOfTheRoot) {
  at::Tensor const x = input({3, kWidth});
  expect_resident_bits<Bare>([&](Bare& net, Parts const& parts) { return net->forward(x, parts); });
}

struct TwoListsImpl : torch::nn::Module {
  TwoListsImpl()
      : first(register_module("first", torch::nn::ModuleList(Block(), Block()))),
        tokens(register_parameter("tokens", at::randn({1, kWidth}))),
        scale(register_buffer("scale", at::randn({kWidth}))),
        second(register_module("second", torch::nn::ModuleList(Block(), Block()))) {}
  at::Tensor forward(at::Tensor x, Parts const& parts) {
    for (std::size_t i = 0; i < first->size(); ++i) {  // not in the order of registration
      x = parts(second->ptr<BlockImpl>(i), parts(first->ptr<BlockImpl>(i), x));
      x = at::cat({x * scale, tokens});
    }
    return x;
  }

  torch::nn::ModuleList first;
  at::Tensor tokens;
  at::Tensor scale;
  torch::nn::ModuleList second;
};
TORCH_MODULE(TwoLists);

// vllm-omni#1486: one list of blocks is found, the other and the root's tensors are not. All are.
TEST_P(OffloadReports, Row35TwoListsOfBlocksAndTensorsOfTheRoot) {
  at::Tensor const x = input({3, kWidth});
  expect_resident_bits<TwoLists>([&](TwoLists& net, Parts const& parts) { return net->forward(x, parts); });
}

// vllm-omni#2935: the second denoiser of a pipeline is not covered. Each has a handle, and they are called in turn.
TEST_P(OffloadReports, Row37TwoDenoisersAreCalledInTurn) {
  at::Tensor const x = input({3, kWidth});
  auto const make_second = [] {
    auto second = make<Stack>();
    second->stem->weight.mul_(2);
    return second;
  };
  Stack second_resident = make_second();
  second_resident->to(*device_);
  for (OffloadOptions const& how : settings<Stack>()) {
    SCOPED_TRACE(described(how));
    auto first_resident = make<Stack>();
    first_resident->to(*device_);
    auto first = make<Stack>();
    Stack second = make_second();
    Offload const first_offload(first, how);
    Offload const second_offload(second, how);
    at::Tensor latent = x;
    at::Tensor wanted = x;
    for (int step = 0; step < 2 * kPasses; ++step) {
      latent =
          step % 2 == 0 ? first->forward(latent, parts(first_offload)) : second->forward(latent, parts(second_offload));
      wanted = step % 2 == 0 ? first_resident->forward(wanted) : second_resident->forward(wanted);
      EXPECT_TRUE(latent.cpu().equal(wanted.cpu())) << "step " << step;
    }
  }
}

/// As hand-written kernels do: by address.
at::Tensor scale_by_address(at::Tensor const& x, at::Tensor const& weight) {
  at::Tensor out = at::empty_like(x);
  auto const* const from = x.const_data_ptr<float>();
  auto const* const by = weight.const_data_ptr<float>();
  auto* const to = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    to[i] = from[i] * by[i % weight.numel()];
  }
  return out;
}
void count_by_address(at::Tensor const& counts) {
  auto* const to = counts.mutable_data_ptr<float>();
  for (int64_t i = 0; i < counts.numel(); ++i) {
    to[i] += 1.0F;
  }
}
TORCH_LIBRARY(noria_reports, library) {
  library.def("scale(Tensor x, Tensor weight) -> Tensor");
  library.def("count(Tensor(a!) counts) -> ()");
}
TORCH_LIBRARY_IMPL(noria_reports, CPU, library) {
  library.impl("scale", &scale_by_address);
  library.impl("count", &count_by_address);
}

struct CustomImpl : torch::nn::Module {
  CustomImpl()
      : weight(register_parameter("weight", at::randn({kWidth}))),
        counts(register_buffer("counts", at::zeros({kWidth}))) {}
  at::Tensor forward(at::Tensor const& x) {
    static auto const scale = c10::Dispatcher::singleton()
                                  .findSchemaOrThrow("noria_reports::scale", "")
                                  .typed<at::Tensor(at::Tensor const&, at::Tensor const&)>();
    static auto const count =
        c10::Dispatcher::singleton().findSchemaOrThrow("noria_reports::count", "").typed<void(at::Tensor const&)>();
    count.call(counts);
    return scale.call(x, weight) + counts;
  }

  at::Tensor weight;
  at::Tensor counts;
};
TORCH_MODULE(Custom);

struct CustomListImpl : torch::nn::Module {
  CustomListImpl() : layers(register_module("layers", torch::nn::ModuleList(Custom(), Custom(), Custom(), Custom()))) {}
  at::Tensor forward(at::Tensor x, Parts const& parts) {
    for (std::size_t i = 0; i < layers->size(); ++i) {
      x = parts(layers->ptr<CustomImpl>(i), x);
    }
    return x;
  }

  torch::nn::ModuleList layers;
};
TORCH_MODULE(CustomList);

// vllm-omni#4247: a custom norm's kernel gets an address of the cpu. A weight is there before any operator asks for its
// address, and what an operator writes there is kept.
TEST_P(OffloadReports, Row38ARegisteredOperatorTakesAddresses) {
  at::Tensor const x = input({3, kWidth});
  expect_resident_bits<CustomList>([&](CustomList& net, Parts const& parts) { return net->forward(x, parts); });
}

/// A weight's bytes as no weight: for code that holds an address.
at::Tensor at_address_of(at::Tensor const& weight) {
  return at::for_blob(const_cast<void*>(weight.const_data_ptr()), weight.sizes())  // NOLINT: only read
      .options(weight.options().requires_grad(false))
      .target_device(weight.device())
      .make_tensor();
}

// The same, without an operator that knows the weight: inside a scope its address is good for work that is given to the
// device there, whatever comes after the scope.
TEST_P(OffloadReports, Row38InsideAScopeWorkGoesByAddressAlone) {
  at::Tensor const x = input({3, kWidth});
  auto resident = make<Stack>();
  resident->to(*device_);
  for (OffloadOptions const& how : scope_settings<Stack>()) {
    SCOPED_TRACE(described(how));
    auto net = make<Stack>();
    Offload const offload(net, how);
    for (int pass = 0; pass < kPasses; ++pass) {
      at::Tensor out = x;
      at::Tensor wanted = x;
      for (std::size_t i = 0; i < net->blocks->size(); ++i) {
        wanted = resident->block(i)->forward(
            at::mm(at::mm(wanted, resident->block(i)->up->weight.t()), resident->block(i)->down->weight.t()));
        auto const use = offload.use(net->block(i));
        out = at::mm(at::mm(out, at_address_of(net->block(i)->up->weight).t()),
                     at_address_of(net->block(i)->down->weight).t());
        out = net->block(i)->forward(out);
      }
      EXPECT_TRUE(out.cpu().equal(wanted.cpu())) << "pass " << pass;
    }
  }
}

// --- Adapters ----------------------------------------------------------------------------------------------------

/// What may be replaced by a wrapper.
struct LayerImpl : torch::nn::Module {
  virtual at::Tensor forward(at::Tensor const& x) = 0;
};

struct DenseImpl : LayerImpl {
  DenseImpl()
      : weight(register_parameter("weight", at::randn({kWidth, kWidth}) / kWidth)),
        bias(register_parameter("bias", at::randn({kWidth}))) {}
  at::Tensor forward(at::Tensor const& x) override { return at::linear(x, weight, bias); }

  at::Tensor weight;
  at::Tensor bias;
};

struct LowRankImpl : LayerImpl {
  LowRankImpl(std::shared_ptr<DenseImpl> wrapped, c10::Device device)
      : base(register_module("base", std::move(wrapped))),
        down(register_parameter("down", at::randn({2, kWidth}).to(device))),
        up(register_parameter("up", at::randn({kWidth, 2}).to(device))) {}
  at::Tensor forward(at::Tensor const& x) override {
    at::Tensor const out = base->forward(x);
    return merged ? out : out + at::linear(at::linear(x, down), up);
  }
  void merge() {
    base->weight.add_(at::mm(up, down));
    merged = true;
  }
  void unmerge() {
    base->weight.sub_(at::mm(up, down));
    merged = false;
  }

  std::shared_ptr<DenseImpl> base;
  at::Tensor down;
  at::Tensor up;
  bool merged = false;
};

/// A block whose layer may be replaced.
struct SlotImpl : torch::nn::Module {
  SlotImpl() : layer(register_module("layer", std::make_shared<DenseImpl>())) {}
  at::Tensor forward(at::Tensor const& x) { return at::tanh(layer->forward(x)); }
  template <typename Layer>
  void replace(std::shared_ptr<Layer> with) {
    layer = replace_module("layer", std::move(with));
  }
  std::shared_ptr<DenseImpl> dense() const { return std::dynamic_pointer_cast<DenseImpl>(layer); }
  std::shared_ptr<LowRankImpl> wrapper() const { return std::dynamic_pointer_cast<LowRankImpl>(layer); }

  std::shared_ptr<LayerImpl> layer;
};
TORCH_MODULE(Slot);

struct AdaptableImpl : torch::nn::Module {
  static constexpr std::size_t kSlots = 5;

  AdaptableImpl()
      : table(register_parameter("table", at::randn({kWidth}))),
        slots(register_module("slots", torch::nn::ModuleList())) {
    for (std::size_t i = 0; i < kSlots; ++i) {
      slots->push_back(Slot());
    }
  }
  at::Tensor forward(at::Tensor x, Parts const& parts) {
    for (std::size_t i = 0; i < kSlots; ++i) {
      x = parts(slot(i), x) * table;
    }
    return x;
  }
  Slot slot(std::size_t i) const { return slots->ptr<SlotImpl>(i); }
  /// Wraps every layer; the file's shape is wrong for the slot `broken`.
  void load_adapter(c10::Device device, Parts const& parts, std::size_t broken = kSlots) {
    torch::manual_seed(5);
    for (std::size_t i = 0; i < kSlots; ++i) {
      parts.in(slot(i), [&] {
        auto const wrapper = std::make_shared<LowRankImpl>(slot(i)->dense(), device);
        slot(i)->replace(wrapper);
        wrapper->down.copy_(at::randn({i == broken ? 3 : 2, kWidth}).to(device));
      });
    }
  }
  void delete_adapter() {
    for (std::size_t i = 0; i < kSlots; ++i) {
      if (auto const wrapper = slot(i)->wrapper()) {
        slot(i)->replace(wrapper->base);
      }
    }
  }

  at::Tensor table;
  torch::nn::ModuleList slots;
};
TORCH_MODULE(Adaptable);

// diffusers#12396, sglang#16297: adapters meet placeholders, and deleting one leaves errors. What is registered after
// offloading began is not managed; merging and unmerging see real weights, and each step gives the resident's bits.
TEST_P(OffloadReports, Row52And56AnAdapterIsLoadedMergedUnmergedAndDeleted) {
  at::Tensor const x = input({3, kWidth});
  auto const life = [&](Adaptable& net, Parts const& parts) {
    std::vector<at::Tensor> out{net->forward(x, parts)};
    net->load_adapter(*device_, parts);
    out.push_back(net->forward(x, parts));
    for (bool const merging : {true, false}) {
      for (std::size_t i = 0; i < AdaptableImpl::kSlots; ++i) {
        parts.in(net->slot(i),
                 [&] { merging ? net->slot(i)->wrapper()->merge() : net->slot(i)->wrapper()->unmerge(); });
      }
      out.push_back(net->forward(x, parts));
    }
    out.push_back(state_of(*net));
    net->delete_adapter();
    out.push_back(net->forward(x, parts));
    return together(out);
  };
  expect_resident_bits<Adaptable>(life);
}

// The same: a model with its adapter is taken up anew, so that the adapter is managed too, and again without it.
TEST_P(OffloadReports, Row52And56AModelIsOffloadedAgainWithItsAdapterAndWithout) {
  at::Tensor const x = input({3, kWidth});
  auto resident = make<Adaptable>();
  resident->to(*device_);
  resident->load_adapter(*device_, Parts());
  at::Tensor const adapted = resident->forward(x, Parts()).cpu();
  resident->delete_adapter();
  at::Tensor const plain = resident->forward(x, Parts()).cpu();
  for (OffloadOptions const& how : settings<Adaptable>()) {
    SCOPED_TRACE(described(how));
    auto net = make<Adaptable>();
    OffloadOptions with_adapter = how;
    {
      Offload offload(net, how);
      Bytes const weights = offload.status().weights_bytes;
      net->load_adapter(*device_, parts(offload));
      EXPECT_TRUE(net->forward(x, parts(offload)).cpu().equal(adapted));
      EXPECT_EQ(offload.status().weights_bytes, weights);
      offload.remove();
      with_adapter.budget = std::max(how.budget->bytes, smallest_budget(*net, Granularity::kBlock));
    }
    Offload again(net, with_adapter);
    EXPECT_EQ(again.status().weights_bytes,
              Offload(make<Adaptable>(), options(how.granularity, 1_GiB)).status().weights_bytes +
                  AdaptableImpl::kSlots * net->slot(0)->wrapper()->up.nbytes() * 2);
    for (int pass = 0; pass < kPasses; ++pass) {
      EXPECT_TRUE(net->forward(x, parts(again)).cpu().equal(adapted)) << "pass " << pass;
    }
    net->delete_adapter();
    EXPECT_TRUE(net->forward(x, parts(again)).cpu().equal(plain));
    again.remove();
    Offload const last(net, how);
    for (int pass = 0; pass < kPasses; ++pass) {
      EXPECT_TRUE(net->forward(x, parts(last)).cpu().equal(plain)) << "pass " << pass;
    }
  }
}

// diffusers#5060: an adapter that fails to load leaves the model broken for all later calls. An exception in the middle
// leaves everything right.
TEST_P(OffloadReports, Row55AnAdapterThatFailsToLoadLeavesEverythingRight) {
  at::Tensor const x = input({3, kWidth});
  expect_resident_bits<Adaptable>([&](Adaptable& net, Parts const& parts) {
    EXPECT_THROW(net->load_adapter(*device_, parts, /*broken=*/3), c10::Error);
    at::Tensor const half_loaded = net->forward(x, parts);
    net->delete_adapter();
    return together({half_loaded, net->forward(x, parts)});
  });
}

// The same, for a call: it raises in its third block, and nothing stays in use.
TEST_P(OffloadReports, Row55ACallThatRaisesInTheMiddleLeavesEverythingRight) {
  at::Tensor const x = input({3, kWidth});
  expect_resident_bits<Stack>([&](Stack& net, Parts const& parts) {
    auto const broken = [&] {
      at::Tensor const hidden = parts(net->block(1), parts(net->stem, x));
      parts.in(net->block(2), [&] { static_cast<void>(net->block(2)->up(hidden.narrow(1, 0, 3))); });
    };
    EXPECT_THAT(message_of(broken), HasSubstr("shapes cannot be multiplied"));
    return net->forward(x, parts);
  });
}

struct LatentNetImpl : torch::nn::Module {
  LatentNetImpl()
      : coder(register_module("coder", Autoencoder())), denoiser(register_module("denoiser", Adaptable())) {}

  Autoencoder coder;
  Adaptable denoiser;
};
TORCH_MODULE(LatentNet);

// diffusers#12440: caching latents and then training an adapter fails under offloading. It trains the same bits:
// latents are encoded without gradients, then the pairs alone are trained.
TEST_P(OffloadReports, Row58LatentsAreCachedAndThenAnAdapterIsTrained) {
  at::Tensor const image = input({2, 3, 8, 8});
  auto const train = [&](LatentNet& net, Parts const& parts) {
    if (!net->denoiser->slot(0)->wrapper()) {
      for (at::Tensor& weight : net->parameters()) {
        weight.requires_grad_(false);
      }
      net->denoiser->load_adapter(*device_, parts);
    }
    at::Tensor const latent = net->coder->encode(image, parts).reshape({-1, kWidth});
    std::vector<at::Tensor> trained;
    for (std::size_t i = 0; i < AdaptableImpl::kSlots; ++i) {
      trained.push_back(net->denoiser->slot(i)->wrapper()->down);
      trained.push_back(net->denoiser->slot(i)->wrapper()->up);
    }
    c10::AutoGradMode const with_gradients(true);
    torch::optim::AdamW optimizer(trained, torch::optim::AdamWOptions(0.01));
    std::vector<at::Tensor> seen{latent};
    for (int step = 0; step < kPasses; ++step) {
      optimizer.zero_grad();
      at::Tensor const loss = net->denoiser->forward(latent, parts).square().sum();
      loss.backward();
      optimizer.step();
      seen.push_back(loss);
      for (at::Tensor const& tensor : trained) {
        seen.push_back(tensor.grad());
        seen.push_back(tensor);
      }
    }
    return together(seen);
  };
  expect_resident_bits<LatentNet>(train);
}

// --- State: shared, moved, saved ---------------------------------------------------------------------------------

struct PipelineImpl : torch::nn::Module {
  explicit PipelineImpl(Stack shared = make<Stack>())
      : encoder(register_module("encoder", std::move(shared))), denoiser(register_module("denoiser", Stack())) {}
  at::Tensor forward(at::Tensor const& x, Parts const& first, Parts const& second) {
    return denoiser->forward(encoder->forward(x, first), second);
  }

  Stack encoder;
  Stack denoiser;
};
TORCH_MODULE(Pipeline);

// diffusers#7448: a second pipeline over shared components mismatches. A shared module has one handle: offloading it a
// second time is refused and changes nothing, and both pipelines run on it.
TEST_P(OffloadReports, Row130TwoPipelinesShareAModule) {
  at::Tensor const x = input({3, kWidth});
  for (OffloadOptions const& how : settings<Stack>()) {
    SCOPED_TRACE(described(how));
    std::array<Pipeline, 2> resident{make<Pipeline>(), nullptr};
    resident[1] = Pipeline(resident[0]->encoder);
    std::array<Pipeline, 2> pipelines{make<Pipeline>(), nullptr};
    pipelines[1] = Pipeline(pipelines[0]->encoder);
    for (Pipeline& pipeline : resident) {
      pipeline->to(*device_);
    }
    Offload const first(pipelines[0], options(how.granularity, 2 * how.budget->bytes));
    EXPECT_THAT(message_of([&] { Offload const second(pipelines[1], how); }),
                HasSubstr("is offloaded by noria already"));
    EXPECT_TRUE(pipelines[1]->denoiser->stem->weight.is_cpu());
    Offload const second(pipelines[1]->denoiser, how);
    for (int pass = 0; pass < kPasses; ++pass) {
      EXPECT_TRUE(
          pipelines[0]->forward(x, parts(first), parts(first)).cpu().equal(resident[0]->forward(x, {}, {}).cpu()));
      EXPECT_TRUE(
          pipelines[1]->forward(x, parts(first), parts(second)).cpu().equal(resident[1]->forward(x, {}, {}).cpu()));
    }
  }
}

// diffusers#5281: two pipelines with offloading fail. Two with weights of their own run in turn, also when one ends.
TEST_P(OffloadReports, Row131TwoPipelinesRunInTurnAndOneEnds) {
  at::Tensor const x = input({3, kWidth});
  auto resident = make<Pipeline>();
  resident->to(*device_);
  at::Tensor const wanted = resident->forward(x, {}, {}).cpu();
  for (OffloadOptions const& how : settings<Pipeline>()) {
    SCOPED_TRACE(described(how));
    auto first = make<Pipeline>();
    auto second = make<Pipeline>();
    Offload first_offload(first, how);
    Offload const second_offload(second, how);
    for (int pass = 0; pass < kPasses; ++pass) {
      EXPECT_TRUE(first->forward(x, parts(first_offload), parts(first_offload)).cpu().equal(wanted));
      EXPECT_TRUE(second->forward(x, parts(second_offload), parts(second_offload)).cpu().equal(wanted));
    }
    first_offload.remove(*device_);
    EXPECT_TRUE(first->forward(x, {}, {}).cpu().equal(wanted));
    EXPECT_TRUE(second->forward(x, parts(second_offload), parts(second_offload)).cpu().equal(wanted));
  }
}

struct StatisticsImpl : torch::nn::Module {
  StatisticsImpl() : layers(register_module("layers", torch::nn::ModuleList())) {
    for (int i = 0; i < 4; ++i) {
      layers->push_back(Slot());
      layers->push_back(torch::nn::BatchNorm1d(kWidth));
    }
    seen = register_buffer("seen", at::zeros({kWidth}));
  }
  at::Tensor forward(at::Tensor x, Parts const& parts) {
    for (std::size_t i = 0; i < layers->size(); i += 2) {
      x = parts(layers->ptr<SlotImpl>(i), x);
      x = parts(layers->ptr<torch::nn::BatchNorm1dImpl>(i + 1), x);
      seen.add_(x.mean(0));
    }
    return x + seen;
  }

  torch::nn::ModuleList layers;
  at::Tensor seen;
};
TORCH_MODULE(Statistics);

// accelerate#2701: models with buffers are wrong. Buffers are weights: running statistics and counters are kept.
TEST_P(OffloadReports, Row133RunningStatisticsAndCountersAreKept) {
  at::Tensor const x = input({6, kWidth});
  expect_resident_bits<Statistics>([&](Statistics& net, Parts const& parts) {
    net->train();
    at::Tensor const trained = net->forward(x, parts);
    net->eval();
    return together({trained, net->forward(x, parts)});
  });
}

// diffusers#10958: an entry outside forward meets no weights. A program may begin anywhere: at a block, at a weight.
TEST_P(OffloadReports, Row134AProgramBeginsAnywhere) {
  at::Tensor const x = input({3, kWidth});
  expect_resident_bits<Stack>([&](Stack& net, Parts const& parts) {
    at::Tensor const from_a_block = parts(net->block(3), parts(net->block(1), x));
    at::Tensor const from_a_layer = parts.in(net->block(2)->up, [&] { return net->block(2)->up(x); });
    at::Tensor const from_a_weight = at::mm(x, net->block(4)->down->weight);
    return together({from_a_block, from_a_layer, from_a_weight, net->head->bias.sum(), net->forward(x, parts)});
  });
}

// diffusers#2531: a pipeline sends its inputs to the encoder's device. That is the one it runs on, from the start.
TEST_P(OffloadReports, Row136ThePipelineAsksTheEncoderForItsDevice) {
  at::Tensor const x = input({3, kWidth}).cpu();
  expect_resident_bits<Stack>([&](Stack& net, Parts const& parts) {
    EXPECT_EQ(net->parameters().front().device(), *device_);
    return net->forward(x.to(net->parameters().front().device()), parts);
  });
}

struct LogitsImpl : torch::nn::Module {
  explicit LogitsImpl(at::Tensor const& tied) : weight(register_parameter("weight", tied)) {}
  at::Tensor forward(at::Tensor const& x) { return at::linear(x, weight); }

  at::Tensor weight;
};
TORCH_MODULE(Logits);

/// The embedding is the last layer's weight too, in float32 among bfloat16 blocks.
struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(11, kWidth))),
        blocks(register_module("blocks", torch::nn::ModuleList(Block(), Block(), Block()))),
        logits(register_module("logits", Logits(embedding->weight))) {
    blocks->to(at::kBFloat16);
  }
  at::Tensor forward(at::Tensor const& tokens, Parts const& parts) {
    at::Tensor hidden = parts(embedding, tokens).to(at::kBFloat16);
    for (std::size_t i = 0; i < blocks->size(); ++i) {
      hidden = parts(blocks->ptr<BlockImpl>(i), hidden);
    }
    return parts(logits, hidden.to(at::kFloat));
  }

  torch::nn::Embedding embedding;
  torch::nn::ModuleList blocks;
  Logits logits;
};
TORCH_MODULE(Tied);

// diffusers#8644: a pre-built encoder with a shared embedding kept in float32 fails. It is right, and stays tied.
TEST_P(OffloadReports, Row137TiedWeightsAndSeveralTypes) {
  at::Tensor const tokens = at::arange(7).to(*device_);
  expect_resident_bits<Tied>([&](Tied& net, Parts const& parts) {
    EXPECT_EQ(net->embedding->weight.unsafeGetTensorImpl(), net->logits->weight.unsafeGetTensorImpl());
    at::Tensor const before = net->forward(tokens, parts);
    net->embedding->weight.mul_(1.5);  // seen by both
    return together({before, net->forward(tokens, parts)});
  });
}

std::string saved(torch::nn::Module const& module) {
  torch::serialize::OutputArchive archive;
  module.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}
/// On the cpu.
Stack loaded(std::string const& bytes) {
  torch::serialize::InputArchive archive;
  std::istringstream stream(bytes);
  archive.load_from(stream, c10::Device(at::kCPU));
  Stack out;
  out->load(archive);
  return out;
}

// transformers#27412: an offloaded model is saved without its weights. Saving it gives the real ones, or raises where
// torch::save reads raw memory; after remove() it has all that was written, and the loaded model goes on as this one.
TEST_P(OffloadReports, Row139AModelIsSavedAfterRemoveAndNeverWithAHole) {
  at::Tensor const x = input({3, kWidth});
  for (OffloadOptions const& how : settings<Stack>()) {
    SCOPED_TRACE(described(how));
    auto resident = make<Stack>();
    resident->to(*device_);
    auto net = make<Stack>();
    Offload offload(net, how);
    for (Stack const& stack : {resident, net}) {
      stack->block(2)->up->weight.mul_(2);
      stack->head->bias.add_(1);
    }
    at::Tensor const wanted = resident->forward(x).cpu();
    EXPECT_TRUE(net->forward(x, parts(offload)).cpu().equal(wanted));
    std::string early;
    std::string const message = message_of([&] { early = saved(*net); });
    if (device_->is_cpu()) {
      EXPECT_THAT(message, StartsWith("EvictedWeightError: "));
    } else {
      EXPECT_TRUE(state_of(*loaded(early)).equal(state_of(*resident))) << message;
    }
    offload.remove();
    Stack const again = loaded(saved(*net));
    EXPECT_TRUE(state_of(*again).equal(state_of(*resident)));
    for (Stack stack : {net, again}) {
      Offload const offloaded_again(stack, how);
      for (int pass = 0; pass < kPasses; ++pass) {
        EXPECT_TRUE(stack->forward(x, parts(offloaded_again)).cpu().equal(wanted)) << "pass " << pass;
      }
    }
  }
}

// The same without ending it: copies of the weights, one by one, are what they were written to be, and load into an
// offloaded model.
TEST_P(OffloadReports, Row139CopiesOfTheWeightsAreSavedWhileOffloaded) {
  at::Tensor const x = input({3, kWidth});
  for (OffloadOptions const& how : settings<Stack>()) {
    SCOPED_TRACE(described(how));
    auto resident = make<Stack>();
    resident->to(*device_);
    auto net = make<Stack>();
    Offload offload(net, how);
    for (Stack const& stack : {resident, net}) {
      stack->block(1)->down->weight.mul_(2);
    }
    offload.flush();
    std::vector<at::Tensor> copies;
    for (at::Tensor const& weight : net->parameters()) {
      copies.push_back(weight.detach().to(at::kCPU, weight.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
    }
    std::ostringstream written;
    torch::save(copies, written);
    std::istringstream stream(written.str());
    std::vector<at::Tensor> loaded;
    torch::load(loaded, stream);
    EXPECT_TRUE(together(loaded).equal(state_of(*resident)));
    Stack other;
    Offload const other_offload(other, how);
    std::vector<at::Tensor> const targets = other->parameters();
    for (std::size_t i = 0; i < targets.size(); ++i) {
      targets[i].copy_(loaded[i]);
    }
    for (int pass = 0; pass < kPasses; ++pass) {
      EXPECT_TRUE(other->forward(x, parts(other_offload)).cpu().equal(resident->forward(x).cpu())) << "pass " << pass;
    }
  }
}

// diffusers#14346: memory is "freed" by moving, and never was. Moving takes the weights out of management: they are in
// memory of the device they were moved to, or of the type, and the engine holds nothing.
TEST_P(OffloadReports, Row140MovingAnOffloadedModelMovesIt) {
  at::Tensor const x = input({3, kWidth});
  auto resident = make<Stack>();
  for (OffloadOptions const& how : settings<Stack>()) {
    SCOPED_TRACE(described(how));
    auto net = make<Stack>();
    Offload offload(net, how);
    static_cast<void>(net->forward(x, parts(offload)));
    net->to(at::kDouble);
    net->to(at::kCPU);
    EXPECT_TRUE(net->stem->weight.is_cpu());
    EXPECT_TRUE(state_of(*net).equal(state_of(*resident)));
    offload.remove();
    EXPECT_EQ(offload.status().device_bytes, 0U);
    net->to(at::kFloat);
    for (int pass = 0; pass < kPasses; ++pass) {
      EXPECT_TRUE(net->forward(x.cpu()).equal(resident->forward(x.cpu()))) << "pass " << pass;
    }
    Offload const again(net, how);
    EXPECT_TRUE(net->forward(x, parts(again)).cpu().equal([&] {
      auto on_device = make<Stack>();
      on_device->to(*device_);
      return on_device->forward(x).cpu();
    }()));
  }
}

// The same: part of it is moved, and the rest stays offloaded.
TEST_P(OffloadReports, Row140ABlockIsMovedAndTheRestStays) {
  at::Tensor const x = input({3, kWidth});
  auto resident = make<Stack>();
  resident->to(*device_);
  resident->block(2)->to(at::kDouble);
  auto const run = [&](Stack& net, Parts const& parts) {
    at::Tensor hidden = parts(net->block(1), parts(net->stem, x));
    hidden = net->block(2)->forward(hidden.to(at::kDouble)).to(at::kFloat);
    return parts(net->head, parts(net->block(3), hidden));
  };
  at::Tensor const wanted = run(resident, Parts()).cpu();
  for (OffloadOptions const& how : settings<Stack>()) {
    SCOPED_TRACE(described(how));
    auto net = make<Stack>();
    Offload const offload(net, how);
    static_cast<void>(net->forward(x, parts(offload)));
    net->block(2)->to(at::kDouble);
    for (int pass = 0; pass < kPasses; ++pass) {
      EXPECT_TRUE(run(net, parts(offload)).cpu().equal(wanted)) << "pass " << pass;
    }
  }
}

struct OneParameterImpl : torch::nn::Module {
  OneParameterImpl() : weight(register_parameter("weight", at::randn({kWidth}))) {}
  at::Tensor forward(at::Tensor const& x) { return x * weight; }

  at::Tensor weight;
};
TORCH_MODULE(OneParameter);

// accelerate#767: a net with a single parameter of its own is not moved. It works, in the memory of that parameter.
TEST_P(OffloadReports, Row143AModelWithOneParameter) {
  at::Tensor const x = input({3, kWidth});
  expect_resident_bits<OneParameter>([&](OneParameter& net, Parts const& parts) { return parts(net, x); });
}

// --- Threads -----------------------------------------------------------------------------------------------------

/// Runs `work(i)` on `count` threads at once and passes on what one of them threw.
void on_threads(std::size_t count, std::function<void(std::size_t)> const& work) {
  std::vector<std::exception_ptr> thrown(count);
  {
    std::vector<std::jthread> threads;
    threads.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        at::init_num_threads();
        c10::NoGradGuard const no_grad;
        try {
          work(i);
        } catch (...) {
          thrown[i] = std::current_exception();
        }
      });
    }
  }
  for (std::exception_ptr const& error : thrown) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

// diffusers#3672: concurrent calls on one pipeline give index errors and black images. Each thread gets its own bits.
TEST_P(OffloadReports, Row155TwoThreadsCallOneModel) {
  std::array<at::Tensor, 2> const x{input({3, kWidth}), input({4, kWidth}).mul(2)};
  std::array<at::Tensor, 2> wanted;
  auto resident = make<Stack>();
  resident->to(*device_);
  for (std::size_t i = 0; i < x.size(); ++i) {
    wanted[i] = resident->forward(x[i]).cpu();
  }
  for (OffloadOptions const& how : settings<Stack>()) {
    SCOPED_TRACE(described(how));
    auto net = make<Stack>();
    Offload const offload(net, how);
    std::array<int, 2> right{};
    on_threads(2, [&](std::size_t i) {
      for (int pass = 0; pass < 4 * kPasses; ++pass) {
        right[i] += net->forward(x[i], parts(offload)).cpu().equal(wanted[i]) ? 1 : 0;
      }
    });
    EXPECT_EQ(right, (std::array{4 * kPasses, 4 * kPasses}));
    EXPECT_LE(offload.status().peak_device_bytes, how.budget->bytes);
  }
}

// --- Training ----------------------------------------------------------------------------------------------------

/// What a checkpoint runs: once without gradients, and again in the backward.
struct Recomputation : torch::CustomClassHolder {
  explicit Recomputation(std::function<at::Tensor(at::Tensor const&)> work) : run(std::move(work)) {}
  std::function<at::Tensor(at::Tensor const&)> run;
};

struct Checkpointed : torch::autograd::Function<Checkpointed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor const& x,
                            c10::intrusive_ptr<Recomputation> const& block) {
    context->save_for_backward({x});
    context->saved_data["block"] = c10::IValue::make_capsule(block);
    return block->run(x);  // a Function's forward has no gradients
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context,
                                          std::vector<at::Tensor> const& out) {
    c10::AutoGradMode const with_gradients(true);
    at::Tensor const x = context->get_saved_variables()[0].detach().requires_grad_();
    auto const block = c10::static_intrusive_pointer_cast<Recomputation>(context->saved_data["block"].toCapsule());
    block->run(x).backward(out[0]);
    return {x.grad(), at::Tensor()};
  }
};

// SimpleTuner#1984: streams must be off with gradient checkpointing. Blocks that run again inside the backward, last
// first, give the gradients of the resident model, and of a backward without checkpoints.
TEST_P(OffloadReports, Row157BlocksRunAgainInsideTheBackward) {
  at::Tensor const x = input({3, kWidth});
  auto const checkpointed = [&](Stack& net, Parts const& parts) {
    c10::AutoGradMode const with_gradients(true);
    at::Tensor hidden = parts(net->stem, x);
    for (std::size_t i = 0; i < net->blocks->size(); ++i) {
      hidden = Checkpointed::apply(
          hidden, c10::make_intrusive<Recomputation>(
                      [block = net->block(i), parts](at::Tensor const& input) { return parts(block, input); }));
    }
    parts(net->head, hidden).square().sum().backward();
    return state_of(*net);
  };
  expect_resident_bits<Stack>(checkpointed);
  auto plain = make<Stack>();
  auto again = make<Stack>();
  plain->to(*device_);
  again->to(*device_);
  {
    c10::AutoGradMode const with_gradients(true);
    plain->forward(x).square().sum().backward();
  }
  EXPECT_TRUE(checkpointed(again, Parts()).equal(state_of(*plain)));
}

// The same by hand: all blocks without gradients, and then each again with them, inside a scope that stays open while
// the backward runs on the device's own autograd thread.
TEST_P(OffloadReports, Row157BlocksRunAgainByHandAndTheirBackwardInsideTheScope) {
  at::Tensor const x = input({3, kWidth});
  expect_resident_bits<Stack>([&](Stack& net, Parts const& parts) {
    std::vector<at::Tensor> entries{x};
    for (std::size_t i = 0; i < net->blocks->size(); ++i) {
      entries.push_back(parts(net->block(i), entries.back()));
    }
    c10::AutoGradMode const with_gradients(true);
    at::Tensor gradient = entries.back() * 2;
    for (std::size_t i = net->blocks->size(); i-- > 0;) {
      at::Tensor const entry = entries[i].detach().requires_grad_();
      parts.in(net->block(i), [&] { net->block(i)->forward(entry).backward(gradient); });
      gradient = entry.grad();
    }
    return together({gradient, state_of(*net)});
  });
}

// --- Addresses ---------------------------------------------------------------------------------------------------

struct UnevenImpl : StackImpl {
  UnevenImpl() : StackImpl({40, 8, 72, 24, 56, 16}) {}
};
TORCH_MODULE(Uneven);

/// False when there was no room for it.
bool fits(std::function<void()> const& work) {
  std::string const message = message_of(work);
  EXPECT_TRUE(message == "nothing was thrown" || message.find("there is no room for") != std::string::npos) << message;
  return message == "nothing was thrown";
}

// What offload.h promises of a scope: a raw pointer taken inside is good until it ends, while other blocks come and go.
// A call for which there is no room beside it is told so.
TEST_P(OffloadReports, AnAddressIsGoodUntilItsScopeEnds) {
  at::Tensor const x = input({3, kWidth});
  auto resident = make<Uneven>();
  resident->to(*device_);
  at::Tensor const wanted = resident->forward(x).cpu();
  auto const sizes = make<Uneven>();
  Bytes const smallest = smallest_budget(*sizes, Granularity::kBlock);
  Bytes const all = Offload(sizes, options(Granularity::kBlock, 1_GiB)).status().weights_bytes;
  for (std::size_t held = 0; held < resident->blocks->size(); ++held) {
    int calls_that_fitted = 0;
    for (Bytes budget = smallest; budget < all; budget += 2_KiB) {
      SCOPED_TRACE("block " + std::to_string(held) + ", " + std::to_string(budget) + " bytes");
      auto net = make<Uneven>();
      Offload const offload(net, options(Granularity::kBlock, budget));
      auto const call = [&] { EXPECT_TRUE(net->forward(x, parts(offload)).cpu().equal(wanted)); };
      call();
      {
        auto const use = offload.use(net->block(held));
        at::Tensor const weight = net->block(held)->up->weight;
        void const* const address = weight.const_data_ptr();
        at::Tensor const by_address = at_address_of(weight);
        for (int pass = 0; pass < kPasses; ++pass) {
          calls_that_fitted += fits(call) ? 1 : 0;
          EXPECT_EQ(weight.const_data_ptr(), address);
          EXPECT_TRUE(by_address.cpu().equal(resident->block(held)->up->weight.cpu()));
        }
      }
      call();
    }
    EXPECT_GT(calls_that_fitted, 0) << "block " << held;
  }
}

// The same while another thread calls the model; what finds no room beside the scope waits for its end.
TEST_P(OffloadReports, AnAddressIsGoodWhileAnotherThreadUsesTheModel) {
  constexpr int kLooks = 50;
  at::Tensor const x = input({3, kWidth});
  auto resident = make<Uneven>();
  resident->to(*device_);
  at::Tensor const wanted = resident->forward(x).cpu();
  for (OffloadOptions const& how : scope_settings<Uneven>()) {
    SCOPED_TRACE(described(how));
    auto net = make<Uneven>();
    Offload const offload(net, how);
    std::atomic<bool> done = false;
    int calls = 0;
    int right = 0;
    on_threads(2, [&](std::size_t thread) {
      if (thread == 1) {
        do {
          right += net->forward(x, parts(offload)).cpu().equal(wanted) ? 1 : 0;
          ++calls;
        } while (!done);
        return;
      }
      for (std::size_t held = 0; held < net->blocks->size(); ++held) {
        auto const use = offload.use(net->block(held));
        at::Tensor const weight = net->block(held)->up->weight;
        void const* const address = weight.const_data_ptr();
        at::Tensor const by_address = at_address_of(weight);
        for (int look = 0; look < kLooks; ++look) {
          EXPECT_TRUE(by_address.cpu().equal(resident->block(held)->up->weight.cpu()));
          EXPECT_EQ(weight.const_data_ptr(), address);
        }
      }
      done = true;
    });
    EXPECT_EQ(right, calls);
    EXPECT_GT(calls, 0);
  }
}

}  // namespace
}  // namespace noria

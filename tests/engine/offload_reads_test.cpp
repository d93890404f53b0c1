// What users of offloaders reported, as C++ programs meet it: entry points, and weights that are read without their
// module's forward. "Row" is the number in docs/reports.md; each test begins with the report and what is expected.
#include <torch/library.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>

#include <array>

#include "engine/offload_reports.h"

namespace noria {
namespace {

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

}  // namespace
}  // namespace noria

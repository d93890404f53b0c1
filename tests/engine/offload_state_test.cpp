// What users of offloaders reported, as C++ programs meet it: models that are shared, moved and saved. "Row" is the
// number in docs/reports.md; each test begins with the report and what is expected.
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/serialize.h>

#include <sstream>

#include "engine/offload_reports.h"

namespace noria {
namespace {

INSTANTIATE_TEST_SUITE_P(Modes, OffloadReports, in_every_mode(), mode_name);

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
      layers->push_back(torch::nn::Linear(kWidth, kWidth));
      layers->push_back(torch::nn::BatchNorm1d(kWidth));
    }
    seen = register_buffer("seen", at::zeros({kWidth}));
  }
  at::Tensor forward(at::Tensor x, Parts const& parts) {
    for (std::size_t i = 0; i < layers->size(); i += 2) {
      x = parts(layers->ptr<torch::nn::LinearImpl>(i), x);
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

}  // namespace
}  // namespace noria

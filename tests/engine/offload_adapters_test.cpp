// What users of offloaders reported, as C++ programs meet it: adapters and training. "Row" is the number in
// docs/reports.md; each test begins with the report and what is expected.
#include <gmock/gmock.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/adamw.h>

#include <algorithm>

#include "engine/offload_reports.h"

namespace noria {
namespace {

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

}  // namespace
}  // namespace noria

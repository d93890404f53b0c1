/// Programs that run twice: with nothing but the operator net, and with scopes around the parts that run. Their bits
/// must be those of the same model resident on the same device.
#pragma once

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <noria/noria.h>
#include <noria/sim.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "sim/torch/backend.h"
#include "support/message_of.h"

namespace noria {

using namespace noria::literals;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::StartsWith;

inline constexpr int64_t kWidth = 32;
inline constexpr int64_t kChannels = 8;
inline constexpr int kPasses = 3;

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
inline at::Tensor together(std::vector<at::Tensor> const& tensors) {
  std::vector<at::Tensor> flat;
  flat.reserve(tensors.size());
  for (at::Tensor const& tensor : tensors) {
    flat.push_back(tensor.detach().cpu().flatten().to(at::kDouble));  // exact for every type used here
  }
  return at::cat(flat);
}

/// Parameters, then buffers, then gradients.
inline at::Tensor state_of(torch::nn::Module const& module) {
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

inline torch::nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel) {
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

/// A weight's bytes as no weight: for code that holds an address.
inline at::Tensor at_address_of(at::Tensor const& weight) {
  return at::for_blob(const_cast<void*>(weight.const_data_ptr()), weight.sizes())  // NOLINT: only read
      .options(weight.options().requires_grad(false))
      .target_device(weight.device())
      .make_tensor();
}

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

/// Runs `work(i)` on `count` threads at once and passes on what one of them threw.
inline void on_threads(std::size_t count, std::function<void(std::size_t)> const& work) {
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

inline auto in_every_mode() {
  return ::testing::Combine(::testing::Values("operators", "scopes"), ::testing::Values("cpu", "sim"));
}

inline std::string mode_name(::testing::TestParamInfo<OffloadReports::ParamType> const& info) {
  return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
}

}  // namespace noria

// A torch::nn transformer under a budget of a quarter of its weights, straight from a safetensors file: on the cpu, or
// on the simulated card, whose time is virtual. Compares with the same model resident and writes a timeline.
#include <noria/noria.h>
#include <noria/sim.h>
#include <torch/nn.h>

#include <iostream>
#include <string>

namespace {

constexpr int64_t kWidth = 256;
constexpr int64_t kHeads = 8;
constexpr int64_t kBlocks = 8;
constexpr int64_t kTokens = 512;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  }

  torch::Tensor forward(torch::Tensor const& x) {
    auto const batch = x.size(0);
    auto const parts = qkv(norm1(x)).view({batch, -1, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    auto const mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    auto const attended = x + out(mixed.transpose(1, 2).reshape({batch, -1, kWidth}));
    return attended + down(torch::gelu(up(norm2(attended))));
  }

  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct TransformerImpl : torch::nn::Module {
  /// `empty`: each block gives its memory up before the next is made, so the whole never stands in memory.
  explicit TransformerImpl(bool empty) {
    tokens = register_module("tokens", torch::nn::Embedding(kTokens, kWidth));
    for (int64_t i = 0; i < kBlocks; ++i) {
      Block const block;
      if (empty) {
        noria::empty_weights(block);
      }
      blocks->push_back(block);
    }
    register_module("blocks", blocks);
  }

  torch::Tensor forward(torch::Tensor const& ids) {
    auto hidden = tokens(ids);
    for (auto const& block : *blocks) {
      hidden = block->as<BlockImpl>()->forward(hidden);
    }
    return torch::linear(hidden, tokens->weight);  // read without its module
  }

  torch::nn::Embedding tokens{nullptr};
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Transformer);

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) {
    throw std::invalid_argument("usage: transformer WEIGHTS cpu|sim TIMELINE");
  }
  std::string const name = argv[2];
  if (name == "sim") {
    noria::sim::enable({.profile = "rtx4090"});
  }
  torch::Device const device(name);
  auto const weights = noria::Checkpoint::open(argv[1]);
  torch::NoGradGuard const no_grad;
  auto const ids = torch::arange(64, torch::kLong).view({2, 32}).to(device);

  Transformer resident(/*empty=*/false);
  noria::load_weights(resident, weights);
  resident->to(device);
  auto const wanted = resident->forward(ids);

  Transformer model(/*empty=*/true);
  noria::Offload const offload(model, weights, {.device = device, .budget = weights.bytes() / 4});
  bool equal = true;
  {
    auto const trace = offload.trace(argv[3]);
    for (int pass = 0; pass < 3; ++pass) {
      equal = equal && torch::equal(model->forward(ids), wanted);
    }
  }
  {
    auto const use = offload.use(model->blocks[0]);  // its weights are on the device while the scope lives
    for (auto const& weight : model->blocks[0]->parameters()) {
      equal = equal && weight.const_data_ptr() != nullptr;
    }
  }
  noria::Status const status = offload.status();
  std::cout << "weights " << status.weights_bytes << " budget " << status.budget_bytes << " peak "
            << status.peak_device_bytes << " disk " << status.disk_bytes << " loads " << status.loads << " equal "
            << (equal ? "yes" : "no") << '\n';
  return equal && status.peak_device_bytes <= status.budget_bytes ? 0 : 1;
} catch (std::exception const& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

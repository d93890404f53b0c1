// A TorchScript module as Python saved it, under a budget of a quarter of its weights.
#include <noria/noria.h>
#include <noria/sim.h>
#include <torch/script.h>

#include <iostream>
#include <string>

int main(int argc, char** argv) try {
  if (argc != 3) {
    throw std::invalid_argument("usage: torchscript MODULE cpu|sim");
  }
  std::string const name = argv[2];
  if (name == "sim") {
    noria::sim::enable({.profile = "rtx4090"});
  }
  torch::Device const device(name);
  torch::NoGradGuard const no_grad;
  torch::jit::Module resident = torch::jit::load(argv[1]);
  resident.to(device);
  auto const x = torch::linspace(-1, 1, 1024).view({4, 256}).to(device);
  auto const wanted = resident.forward({x}).toTensor();

  torch::jit::Module model = torch::jit::load(argv[1]);
  noria::Bytes weights = 0;
  for (auto const& tensor : model.parameters()) {
    weights += tensor.nbytes();
  }
  noria::Offload offload(model, {.device = device, .budget = weights / 4});
  bool equal = true;
  for (int pass = 0; pass < 3; ++pass) {
    equal = equal && torch::equal(model.forward({x}).toTensor(), wanted);
  }
  noria::Status const status = offload.status();
  offload.remove(device);  // an ordinary resident module again
  equal = equal && torch::equal(model.forward({x}).toTensor(), wanted);
  std::cout << "weights " << status.weights_bytes << " budget " << status.budget_bytes << " peak "
            << status.peak_device_bytes << " loads " << status.loads << " equal " << (equal ? "yes" : "no") << '\n';
  return equal && status.peak_device_bytes <= status.budget_bytes ? 0 : 1;
} catch (std::exception const& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

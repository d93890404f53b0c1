#include <noria/noria.h>
#include <torch/script.h>

#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 4) {
    throw std::invalid_argument("usage: budget MODULE.pt DEVICE BUDGET");
  }
  torch::NoGradGuard const no_grad;
  torch::Device const device(argv[2]);
  torch::jit::Module model = torch::jit::load(argv[1]);
  noria::Offload const offload(model, {.device = device, .budget = noria::parse_byte_amount(argv[3])});
  std::cout << model.forward({torch::ones({4, 256}, device)}).toTensor().sizes() << '\n';
  noria::Status const status = offload.status();
  std::cout << status.peak_device_bytes << " bytes at most, of " << status.weights_bytes << '\n';
} catch (std::exception const& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

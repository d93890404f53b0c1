#include <noria/checkpoint.h>
#include <noria/device_backend.h>

#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 3) {
    throw std::invalid_argument("usage: fits FOLDER DEVICE");
  }
  auto const weights = noria::Checkpoint::open(argv[1]).bytes();
  auto const free = noria::DeviceBackend::get(c10::Device(argv[2])).mem_get_info().free_bytes;
  std::cout << noria::format_bytes(weights) << " of weights, " << noria::format_bytes(free) << " free\n";
} catch (std::exception const& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

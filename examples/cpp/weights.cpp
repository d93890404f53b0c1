// What a checkpoint holds, by dtype. Needs no PyTorch.
#include <noria/checkpoint.h>

#include <iostream>
#include <map>
#include <string>

int main(int argc, char** argv) try {
  if (argc != 2) {
    throw std::invalid_argument("usage: weights CHECKPOINT");
  }
  auto const checkpoint = noria::Checkpoint::open(argv[1]);
  std::map<std::string, noria::Bytes> bytes;
  for (noria::CheckpointTensor const& tensor : checkpoint.tensors()) {
    bytes[std::string(tensor.dtype)] += tensor.bytes;
  }
  for (auto const& [dtype, size] : bytes) {
    std::cout << dtype << ": " << noria::format_bytes(size) << '\n';
  }
} catch (std::exception const& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

#include "support/checkpoints.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <bit>

namespace noria::testing {

std::string safetensors_bytes(std::string_view json, std::string_view data, std::uint64_t claimed) {
  auto const length = std::bit_cast<std::array<char, 8>>(claimed);
  std::string bytes(length.begin(), length.end());
  bytes += json;
  bytes += data;
  return bytes;
}

std::string safetensors_bytes(std::string_view json, std::string_view data) {
  return safetensors_bytes(json, data, json.size());
}

std::string safetensors_bytes(std::vector<TestTensor> const& tensors) {
  std::string json = "{";
  std::string data;
  for (TestTensor const& tensor : tensors) {
    json += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        data.empty() && json == "{" ? "" : ",", tensor.name, tensor.dtype, fmt::join(tensor.shape, ","),
                        data.size(), data.size() + tensor.bytes.size());
    data += tensor.bytes;
  }
  return safetensors_bytes(json + "}", data);
}

}  // namespace noria::testing

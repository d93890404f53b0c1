/// Makes safetensors files for tests, honest ones and others.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace noria::testing {

/// The bytes of a safetensors file with this header text and this data; `claimed` replaces the true header length.
std::string safetensors_bytes(std::string_view json, std::string_view data);
std::string safetensors_bytes(std::string_view json, std::string_view data, std::uint64_t claimed);

struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::string bytes;
};

/// An honest file with these tensors in this order.
std::string safetensors_bytes(std::vector<TestTensor> const& tensors);

}  // namespace noria::testing

/// What a torch::nn module is called by.
#pragma once

#include <concepts>
#include <stdexcept>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace noria {

/// A ModuleHolder, as TORCH_MODULE makes them, or a pointer of any kind.
template <typename Handle>
concept ModuleHandle = requires(Handle const& handle) {
  { *handle } -> std::convertible_to<torch::nn::Module const&>;
  static_cast<bool>(handle);
};

/// The module behind it. Throws std::invalid_argument when there is none.
template <ModuleHandle Handle>
torch::nn::Module const& module_of(Handle const& handle) {
  if (!handle) {
    throw std::invalid_argument("the handle holds no module");
  }
  return *handle;
}

}  // namespace noria

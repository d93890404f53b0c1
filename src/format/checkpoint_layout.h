/// Where the weights of a model lie in a folder: the layouts that Diffusers and transformers write.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace noria {

/// The files of one model.
struct CheckpointFiles {
  /// The index when there are several files, else empty and `single` is the file.
  std::filesystem::path index{};
  std::filesystem::path single{};
};

/// Finds the weights of one model at `path`: a .safetensors file, an index, or a folder of one component. In a folder
/// the names are, in this order: diffusion_pytorch_model, model, adapter_model, pytorch_lora_weights; each as
/// "<name>[.<variant>].safetensors" or with the index "<name>.safetensors.index[.<variant>].json"; at last the only
/// .safetensors file there is. A single file is preferred to an index, as both libraries do.
/// Empty when there are none. Throws std::invalid_argument when several unnamed files leave a choice.
std::optional<CheckpointFiles> find_checkpoint(std::filesystem::path const& path, std::string_view variant = {});

/// The components of a Diffusers pipeline folder (model_index.json) that have weights, sorted by name; empty when it is
/// no pipeline. Throws IntegrityError (IndexInvalid) when model_index.json is damaged or names a place elsewhere.
std::vector<std::string> pipeline_components(std::filesystem::path const& folder, std::string_view variant = {});

}  // namespace noria

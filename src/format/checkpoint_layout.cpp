#include "format/checkpoint_layout.h"

#include <fmt/format.h>
#include <noria/error.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

#include "io/file.h"

namespace noria {
namespace {

namespace fs = std::filesystem;

// As written by save_pretrained of diffusers 0.42 and transformers 5, and by peft.
constexpr std::array<std::string_view, 4> kNames{"diffusion_pytorch_model", "model", "adapter_model",
                                                 "pytorch_lora_weights"};
constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
constexpr Bytes kLargestModelIndex = 1'000'000;

std::optional<CheckpointFiles> in_folder(fs::path const& folder, std::string_view variant) {
  std::string const dotted = variant.empty() ? "" : fmt::format(".{}", variant);
  for (std::string_view const name : kNames) {
    fs::path const single = folder / fmt::format("{}{}{}", name, dotted, kSuffix);
    if (fs::is_regular_file(single)) {
      return CheckpointFiles{.single = single};
    }
    for (fs::path const& index : {folder / fmt::format("{}{}.index{}.json", name, kSuffix, dotted),
                                  folder / fmt::format("{}{}{}", name, dotted, kIndexSuffix)}) {
      if (fs::is_regular_file(index)) {
        return CheckpointFiles{.index = index};
      }
    }
  }
  if (!variant.empty()) {
    return std::nullopt;
  }
  std::vector<fs::path> found;
  for (fs::directory_entry const& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == kSuffix && entry.is_regular_file()) {
      found.push_back(entry.path());
    }
  }
  if (found.empty()) {
    return std::nullopt;
  }
  if (found.size() > 1) {
    std::ranges::sort(found);
    throw std::invalid_argument(fmt::format(
        "'{}' holds {} safetensors files ('{}', '{}', ...) and no index that says how they belong together; "
        "name the file",
        folder.string(), found.size(), found[0].filename().string(), found[1].filename().string()));
  }
  return CheckpointFiles{.single = found[0]};
}

nlohmann::json read_model_index(fs::path const& path) {
  File const file = File::open(path);
  if (file.size() > kLargestModelIndex) {
    throw IntegrityError(IntegrityCode::kIndexInvalid, file.path(), "too large for a model index");
  }
  std::string text(file.size(), '\0');
  file.read_exact(0, std::as_writable_bytes(std::span(text)));
  nlohmann::json model_index = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!model_index.is_object()) {
    throw IntegrityError(IntegrityCode::kIndexInvalid, file.path(), "not a JSON object");
  }
  return model_index;
}

}  // namespace

std::optional<CheckpointFiles> find_checkpoint(fs::path const& path, std::string_view variant) {
  if (fs::is_directory(path)) {
    return in_folder(path, variant);
  }
  if (path.extension() == ".json") {
    return CheckpointFiles{.index = path};
  }
  return CheckpointFiles{.single = path};
}

std::vector<std::string> pipeline_components(fs::path const& folder, std::string_view variant) {
  fs::path const path = folder / "model_index.json";
  if (!fs::is_regular_file(path)) {
    return {};
  }
  std::vector<std::string> components;
  nlohmann::json const model_index = read_model_index(path);
  for (auto const& [name, value] : model_index.items()) {
    // A component is [library, class]; [null, null] stands for one that was left out.
    if (!value.is_array() || value.size() != 2 || !value[0].is_string() || !value[1].is_string()) {
      continue;
    }
    if (name.empty() || name.front() == '.' || name.find_first_of("/\\") != std::string::npos) {
      throw IntegrityError(IntegrityCode::kIndexInvalid, path.string(),
                           fmt::format("component '{}' is not the plain name of a folder", name));
    }
    fs::path const component = folder / name;
    if (fs::is_directory(component) &&
        (in_folder(component, variant) || (!variant.empty() && in_folder(component, {})))) {
      components.push_back(name);
    }
  }
  std::ranges::sort(components);
  return components;
}

}  // namespace noria

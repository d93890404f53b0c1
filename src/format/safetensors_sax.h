/// The JSON side of a safetensors header: a bounded event parser that keeps only what the format allows.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/safetensors.h"

namespace noria {

/// What the JSON said, before any arithmetic: begin and end are still relative to the data section.
struct SafetensorsJson {
  std::vector<TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
};

/// Throws IntegrityError (HeaderInvalid). Duplicate tensor names are not seen here: they are found by sorting.
SafetensorsJson parse_safetensors_json(std::string_view json, std::string const& path, SafetensorsLimits const& limits);

}  // namespace noria

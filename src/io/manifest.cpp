#include "io/manifest.h"

#include <fmt/format.h>
#include <noria/error.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <stdexcept>

namespace noria {
namespace {

constexpr int kVersion = 1;
constexpr std::string_view kFormat = "noria offload folder";

Checksum checksum_of(std::string const& text) { return checksum(std::as_bytes(std::span(text))); }

nlohmann::json to_body(Manifest const& manifest) {
  nlohmann::json tensors = nlohmann::json::array();
  for (StoredTensor const& tensor : manifest.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"dtype", tensor.dtype},
                       {"shape", tensor.shape},
                       {"strides", tensor.strides},
                       {"offset", tensor.offset},
                       {"bytes", tensor.bytes}});
  }
  nlohmann::json checksums = nlohmann::json::array();
  for (Checksum const& sum : manifest.checksums) {
    checksums.push_back(sum.hex());
  }
  FileIdentity const& identity = manifest.data_identity;
  return {
      {"format", kFormat},
      {"version", kVersion},
      {"source", manifest.source},
      {"tensors", std::move(tensors)},
      {"data_file", manifest.data_file},
      {"data_bytes", manifest.data_bytes},
      {"chunk_bytes", manifest.chunk_bytes},
      {"xxh3_128", std::move(checksums)},
      {"data_identity", {identity.device, identity.inode, identity.size, identity.modified_ns, identity.changed_ns}}};
}

StoredTensor tensor_from(nlohmann::json const& json) {
  return {.name = json.at("name").get<std::string>(),
          .dtype = json.at("dtype").get<std::string>(),
          .shape = json.at("shape").get<std::vector<std::uint64_t>>(),
          .strides = json.at("strides").get<std::vector<std::int64_t>>(),
          .offset = json.at("offset").get<Bytes>(),
          .bytes = json.at("bytes").get<Bytes>()};
}

Manifest from_body(nlohmann::json const& body) {
  if (body.at("format") != kFormat || body.at("version") != kVersion) {
    throw std::invalid_argument("not a manifest of this version of noria");
  }
  Manifest manifest;
  manifest.source = body.at("source").get<std::map<std::string, std::string>>();
  for (nlohmann::json const& tensor : body.at("tensors")) {
    manifest.tensors.push_back(tensor_from(tensor));
  }
  manifest.data_file = body.at("data_file").get<std::string>();
  manifest.data_bytes = body.at("data_bytes").get<Bytes>();
  manifest.chunk_bytes = body.at("chunk_bytes").get<Bytes>();
  for (nlohmann::json const& sum : body.at("xxh3_128")) {
    manifest.checksums.push_back(Checksum::from_hex(sum.get<std::string>()));
  }
  nlohmann::json const& identity = body.at("data_identity");
  manifest.data_identity = {.device = identity.at(0).get<std::uint64_t>(),
                            .inode = identity.at(1).get<std::uint64_t>(),
                            .size = identity.at(2).get<Bytes>(),
                            .modified_ns = identity.at(3).get<std::int64_t>(),
                            .changed_ns = identity.at(4).get<std::int64_t>()};
  return manifest;
}

void check(Manifest const& manifest) {
  auto const require = [](bool holds, char const* what) {
    if (!holds) {
      throw std::invalid_argument(what);
    }
  };
  require(!manifest.data_file.empty() && manifest.data_file.front() != '.' &&
              manifest.data_file.find_first_of("/\\") == std::string::npos,
          "the data file is elsewhere");
  require(std::has_single_bit(manifest.chunk_bytes), "a chunk size that is no power of two");
  Bytes const chunks =
      manifest.data_bytes / manifest.chunk_bytes + (manifest.data_bytes % manifest.chunk_bytes != 0 ? 1 : 0);
  require(manifest.checksums.size() == chunks, "another number of checksums than of chunks");
  std::set<std::string_view> names;
  for (StoredTensor const& tensor : manifest.tensors) {
    require(names.insert(tensor.name).second, "a tensor stands twice");
    require(tensor.bytes <= manifest.data_bytes && tensor.offset <= manifest.data_bytes - tensor.bytes,
            "a tensor that ends beyond the data");
    require(tensor.strides.size() == tensor.shape.size(), "a tensor with more strides than dimensions, or fewer");
  }
}

}  // namespace

std::string Manifest::to_json() const {
  nlohmann::json const body = to_body(*this);
  return nlohmann::json{{"noria", body}, {"xxh3_128", checksum_of(body.dump()).hex()}}.dump(1) + "\n";
}

Manifest Manifest::parse(std::string_view json, std::string const& path) {
  try {
    nlohmann::json const document = nlohmann::json::parse(json);
    nlohmann::json const& body = document.at("noria");
    // Keys are sorted in the library's objects, so the same content always gives the same text.
    if (checksum_of(body.dump()) != Checksum::from_hex(document.at("xxh3_128").get<std::string>())) {
      throw std::invalid_argument("its own checksum differs");
    }
    Manifest manifest = from_body(body);
    check(manifest);
    return manifest;
  } catch (nlohmann::json::exception const& error) {
    throw IntegrityError(IntegrityCode::kManifestInvalid, path, std::string(error.what()).substr(0, 200));
  } catch (std::invalid_argument const& error) {
    throw IntegrityError(IntegrityCode::kManifestInvalid, path, error.what());
  }
}

bool Manifest::describes(std::map<std::string, std::string> const& wanted_source,
                         std::vector<StoredTensor> const& wanted_tensors) const {
  auto const same = [](StoredTensor const& a, StoredTensor const& b) {
    return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides && a.bytes == b.bytes;
  };
  return source == wanted_source && std::ranges::is_permutation(tensors, wanted_tensors, same);
}

}  // namespace noria

#include "format/shard_index.h"

#include <fmt/format.h>
#include <noria/error.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "io/file.h"

namespace noria {
namespace {

constexpr Bytes kLargestIndex = 100'000'000;
constexpr std::size_t kMostTensors = 1'000'000;
constexpr std::size_t kLongestName = 4096;
constexpr std::size_t kDeepest = 16;

// Keeps "weight_map", steps over everything else.
class IndexSax final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit IndexSax(std::string const& path) : path_(path) {}

  std::vector<std::pair<std::string, std::string>> take() {
    if (!map_seen_) {
      fail("it has no 'weight_map'");
    }
    return std::move(map_);
  }

  bool start_object(std::size_t /*elements*/) override {
    if (in_map_) {
      fail(fmt::format("'{}' is not in one file", key_));
    }
    if (depth_ == 1 && key_ == "weight_map") {
      if (map_seen_) {
        fail("'weight_map' stands twice");
      }
      in_map_ = map_seen_ = true;
    }
    return descend();
  }
  bool end_object() override {
    in_map_ = false;
    --depth_;
    return true;
  }
  bool start_array(std::size_t /*elements*/) override {
    refuse_value();
    return descend();
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& key) override {
    if (in_map_ && key.size() > kLongestName) {
      fail(fmt::format("a name of {} bytes; at most {} are allowed", key.size(), kLongestName));
    }
    if (in_map_ || depth_ == 1) {
      key_ = std::move(key);
    }
    return true;
  }
  bool string(string_t& value) override {
    if (!in_map_) {
      refuse_value();
      return true;
    }
    if (map_.size() == kMostTensors) {
      fail(fmt::format("more than {} tensors", kMostTensors));
    }
    map_.emplace_back(std::move(key_), std::move(value));
    return true;
  }
  bool null() override { return refuse_value(); }
  bool boolean(bool /*value*/) override { return refuse_value(); }
  bool number_integer(number_integer_t /*value*/) override { return refuse_value(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return refuse_value(); }
  bool number_float(number_float_t /*value*/, string_t const& /*text*/) override { return refuse_value(); }
  bool binary(binary_t& /*value*/) override { return refuse_value(); }
  bool parse_error(std::size_t position, std::string const& /*token*/,
                   nlohmann::detail::exception const& error) override {
    fail(fmt::format("not valid JSON at byte {}: {}", position, std::string_view(error.what()).substr(0, 200)));
  }

 private:
  [[noreturn]] void fail(std::string const& what) const {
    throw IntegrityError(IntegrityCode::kIndexInvalid, path_, what);
  }
  bool descend() {
    if (++depth_ > kDeepest) {
      fail(fmt::format("nested more than {} deep", kDeepest));
    }
    return true;
  }
  // Something that is no object, outside the map.
  bool refuse_value() const {
    if (in_map_) {
      fail(fmt::format("'{}' is not in one file", key_));
    }
    if (depth_ == 0 || (depth_ == 1 && key_ == "weight_map")) {
      fail("it is not an object with a 'weight_map'");
    }
    return true;
  }

  std::string const& path_;
  std::vector<std::pair<std::string, std::string>> map_;
  std::string key_;
  std::size_t depth_ = 0;
  bool in_map_ = false;
  bool map_seen_ = false;
};

// The index comes from a stranger: it may name files beside itself and nothing else.
bool plain_file_name(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  return name.size() > kSuffix.size() && name.size() <= 255 && name.ends_with(kSuffix) && name.front() != '.' &&
         std::ranges::none_of(name,
                              [](char c) { return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20; });
}

}  // namespace

ShardIndex ShardIndex::parse(std::string_view json, std::string const& path) {
  if (json.find('\0') != std::string_view::npos) {
    throw IntegrityError(IntegrityCode::kIndexInvalid, path, "it contains a zero byte");
  }
  IndexSax sax(path);
  nlohmann::json::sax_parse(json.begin(), json.end(), &sax);
  auto map = sax.take();
  std::ranges::sort(map);
  auto const twice = std::ranges::adjacent_find(map, {}, &std::pair<std::string, std::string>::first);
  if (twice != map.end()) {
    throw IntegrityError(IntegrityCode::kIndexInvalid, path, fmt::format("tensor '{}' stands twice", twice->first));
  }
  std::map<std::string, std::uint32_t> numbers;
  for (auto const& [name, file] : map) {
    if (!plain_file_name(file)) {
      throw IntegrityError(IntegrityCode::kIndexInvalid, path,
                           fmt::format("tensor '{}' is said to be in '{}'; only the plain name of a .safetensors file "
                                       "beside the index is accepted",
                                       name, file.substr(0, 300)));
    }
    numbers.emplace(file, 0);
  }
  ShardIndex index;
  for (auto& [file, number] : numbers) {
    number = static_cast<std::uint32_t>(index.files.size());
    index.files.push_back(file);
  }
  index.tensors.reserve(map.size());
  for (auto& [name, file] : map) {
    index.tensors.emplace_back(std::move(name), numbers.at(file));
  }
  return index;
}

ShardIndex ShardIndex::read(std::filesystem::path const& path) {
  File const file = File::open(path);
  if (file.size() > kLargestIndex) {
    throw IntegrityError(IntegrityCode::kIndexInvalid, file.path(),
                         fmt::format("{} bytes are too many for an index", file.size()));
  }
  std::string json(file.size(), '\0');
  file.read_exact(0, std::as_writable_bytes(std::span(json)));
  return parse(json, file.path());
}

}  // namespace noria

#include "format/safetensors_sax.h"

#include <fmt/format.h>
#include <noria/error.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace noria {
namespace {

// A DOM would keep only the last of two equal keys and would build whatever a stranger's header asks for; events let us
// refuse at the first token that a header cannot contain.
class HeaderSax final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderSax(std::string const& path, SafetensorsLimits const& limits) : path_(path), limits_(limits) {}

  SafetensorsJson take() {
    if (state_ != State::kDone) {
      fail("it ends before its object does");
    }
    return std::move(result_);
  }

  bool start_object(std::size_t /*elements*/) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kTopValue:
        if (name_ == "__metadata__") {
          state_ = State::kMetadata;
        } else {
          begin_tensor();
          state_ = State::kTensor;
        }
        return true;
      default:
        fail(fmt::format("an object where '{}' cannot have one", name_));
    }
  }

  bool end_object() override {
    switch (state_) {
      case State::kTop:
        state_ = State::kDone;
        return true;
      case State::kMetadata:
        state_ = State::kTop;
        return true;
      case State::kTensor:
        if (seen_ != kAllFields) {
          fail(fmt::format("tensor '{}' lacks {}", name_,
                           (seen_ & kDtype) == 0   ? "its dtype"
                           : (seen_ & kShape) == 0 ? "its shape"
                                                   : "its data_offsets"));
        }
        state_ = State::kTop;
        return true;
      default:
        fail("an object ends where none began");
    }
  }

  bool key(string_t& key) override {
    switch (state_) {
      case State::kTop:
        top_key(key);
        return true;
      case State::kMetadata:
        metadata_key_ = std::move(key);
        state_ = State::kMetadataValue;
        return true;
      case State::kTensor:
        tensor_key(key);
        return true;
      default:
        fail("a key where none can be");
    }
  }

  bool string(string_t& value) override {
    switch (state_) {
      case State::kMetadataValue:
        if (!result_.metadata.emplace(std::move(metadata_key_), std::move(value)).second) {
          fail("__metadata__ has a key twice");
        }
        state_ = State::kMetadata;
        return true;
      case State::kDtypeValue:
        if (value.size() > kLongestDtype) {
          fail(fmt::format("the dtype of '{}' is {} bytes long", name_, value.size()));
        }
        tensor().dtype = std::move(value);
        state_ = State::kTensor;
        return true;
      default:
        fail_value("a string");
    }
  }

  bool start_array(std::size_t /*elements*/) override {
    if (state_ == State::kShapeValue) {
      state_ = State::kShapeItems;
      return true;
    }
    if (state_ == State::kOffsetsValue) {
      state_ = State::kOffsetsItems;
      offsets_ = 0;
      return true;
    }
    fail_value("an array");
  }

  bool end_array() override {
    if (state_ == State::kOffsetsItems && offsets_ != 2) {
      fail(fmt::format("data_offsets of '{}' has {} numbers, not 2", name_, offsets_));
    }
    state_ = State::kTensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShapeItems) {
      if (tensor().shape.size() == limits_.rank) {
        fail(fmt::format("tensor '{}' has more than {} dimensions", name_, limits_.rank));
      }
      tensor().shape.push_back(value);
      return true;
    }
    if (state_ == State::kOffsetsItems) {
      (offsets_ == 0 ? tensor().begin : tensor().end) = value;
      if (++offsets_ > 2) {
        fail(fmt::format("data_offsets of '{}' has more than 2 numbers", name_));
      }
      return true;
    }
    fail_value("a number");
  }

  bool number_integer(number_integer_t value) override { fail_value(fmt::format("the negative number {}", value)); }
  bool number_float(number_float_t /*value*/, string_t const& text) override {
    fail_value(fmt::format("the number {}, which is no unsigned 64-bit integer", text.substr(0, 40)));
  }
  bool null() override { fail_value("null"); }
  bool boolean(bool value) override { fail_value(value ? "true" : "false"); }
  bool binary(binary_t& /*value*/) override { fail_value("binary"); }

  bool parse_error(std::size_t position, std::string const& /*token*/,
                   nlohmann::detail::exception const& error) override {
    // The library's own text quotes the input; its length is the stranger's choice.
    fail(fmt::format("not valid JSON at byte {}: {}", position, std::string_view(error.what()).substr(0, 200)));
  }

 private:
  enum class State {
    kStart,
    kTop,
    kTopValue,
    kMetadata,
    kMetadataValue,
    kTensor,
    kDtypeValue,
    kShapeValue,
    kShapeItems,
    kOffsetsValue,
    kOffsetsItems,
    kDone,
  };
  static constexpr unsigned kDtype = 1;
  static constexpr unsigned kShape = 2;
  static constexpr unsigned kOffsets = 4;
  static constexpr unsigned kAllFields = kDtype | kShape | kOffsets;
  static constexpr std::size_t kLongestDtype = 64;

  [[noreturn]] void fail(std::string const& what) const {
    throw IntegrityError(IntegrityCode::kHeaderInvalid, path_, "in the header: " + what);
  }

  [[noreturn]] void fail_value(std::string const& found) const {
    fail(fmt::format("{} where '{}' cannot have it", found, state_ == State::kMetadataValue ? metadata_key_ : name_));
  }

  TensorEntry& tensor() { return result_.tensors.back(); }

  void top_key(string_t& key) {
    if (key.size() > limits_.name_bytes) {
      fail(fmt::format("a name of {} bytes; at most {} are allowed", key.size(), limits_.name_bytes));
    }
    name_ = std::move(key);
    if (name_ == "__metadata__") {
      if (metadata_seen_) {
        fail("__metadata__ stands twice");
      }
      metadata_seen_ = true;
    }
    state_ = State::kTopValue;
  }

  void begin_tensor() {
    if (result_.tensors.size() == limits_.tensors) {
      fail(fmt::format("more than {} tensors", limits_.tensors));
    }
    result_.tensors.emplace_back().name = name_;
    seen_ = 0;
  }

  void tensor_key(std::string_view key) {
    unsigned field = 0;
    if (key == "dtype") {
      field = kDtype;
      state_ = State::kDtypeValue;
    } else if (key == "shape") {
      field = kShape;
      state_ = State::kShapeValue;
    } else if (key == "data_offsets") {
      field = kOffsets;
      state_ = State::kOffsetsValue;
    } else {
      // A field we do not know could change what the others mean.
      fail(fmt::format("tensor '{}' has the unknown field '{}'", name_, key.substr(0, 40)));
    }
    if ((seen_ & field) != 0) {
      fail(fmt::format("tensor '{}' has '{}' twice", name_, key));
    }
    seen_ |= field;
  }

  std::string const& path_;
  SafetensorsLimits const& limits_;
  SafetensorsJson result_;
  State state_ = State::kStart;
  std::string name_;
  std::string metadata_key_;
  bool metadata_seen_ = false;
  unsigned seen_ = 0;
  unsigned offsets_ = 0;
};

}  // namespace

SafetensorsJson parse_safetensors_json(std::string_view json, std::string const& path,
                                       SafetensorsLimits const& limits) {
  auto const invalid = [&](char const* what) { throw IntegrityError(IntegrityCode::kHeaderInvalid, path, what); };
  if (json.empty() || json.front() != '{') {
    invalid("the header does not begin with '{': is this a safetensors file?");
  }
  // The JSON library takes a NUL for the end of its input, and any white space after the object.
  if (json.find('\0') != std::string_view::npos) {
    invalid("the header contains a zero byte");
  }
  if (json[json.find_last_not_of(' ')] != '}') {
    invalid("the header ends with something other than '}' and spaces");
  }
  HeaderSax sax(path, limits);
  nlohmann::json::sax_parse(json.begin(), json.end(), &sax);
  return sax.take();
}

}  // namespace noria

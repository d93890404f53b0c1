#include "format/safetensors.h"

#include <fmt/format.h>
#include <noria/error.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "format/dtype.h"
#include "format/safetensors_sax.h"

namespace noria {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is read in place");

constexpr Bytes kLengthField = 8;

std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    return std::nullopt;
  }
  return product;
}

// Bytes of a tensor by its shape and dtype; counted in bits, since some dtypes are smaller than a byte.
Bytes claimed_bytes(TensorEntry const& tensor, std::string const& path) {
  std::optional<std::uint64_t> bits = tensor.dtype_bits;
  bool const empty = std::ranges::find(tensor.shape, 0U) != tensor.shape.end();
  for (std::uint64_t const extent : tensor.shape) {
    bits = empty ? 0 : checked_multiply(*bits, extent);
    if (!bits) {
      throw IntegrityError(IntegrityCode::kSizeOverflow, path,
                           fmt::format("tensor '{}' has a shape whose size does not fit in 64 bits", tensor.name));
    }
  }
  if (*bits % 8 != 0) {
    throw IntegrityError(IntegrityCode::kTensorInvalid, path,
                         fmt::format("tensor '{}' ({}) has {} bits, which is no whole number of bytes", tensor.name,
                                     tensor.dtype, *bits));
  }
  return *bits / 8;
}

// Turns offsets in the data section into offsets in the file.
void place_tensor(TensorEntry& tensor, Bytes data_begin, Bytes data_bytes, std::string const& path) {
  if (tensor.begin > tensor.end) {
    throw IntegrityError(
        IntegrityCode::kOffsetsInvalid, path,
        fmt::format("tensor '{}' begins at {} and ends before it, at {}", tensor.name, tensor.begin, tensor.end));
  }
  tensor.dtype_bits = dtype_bits(tensor.dtype);
  if (tensor.dtype_bits != 0) {
    Bytes const wanted = claimed_bytes(tensor, path);
    if (wanted != tensor.bytes()) {
      throw IntegrityError(
          IntegrityCode::kTensorInvalid, path,
          fmt::format("tensor '{}' needs {} bytes by its shape and dtype {}, and its data_offsets give "
                      "{}",
                      tensor.name, wanted, tensor.dtype, tensor.bytes()));
    }
  }
  if (tensor.end > data_bytes) {
    throw IntegrityError(IntegrityCode::kOffsetsInvalid, path,
                         fmt::format("tensor '{}' ends at byte {} of the data, and the file has only {}: it may be an "
                                     "incomplete download",
                                     tensor.name, tensor.end, data_bytes));
  }
  tensor.begin += data_begin;
  tensor.end += data_begin;
}

void check_cover(std::span<TensorEntry const> tensors, Bytes data_begin, Bytes file_bytes, bool allow_trailing,
                 std::string const& path) {
  Bytes covered = data_begin;
  for (TensorEntry const& tensor : tensors) {
    if (tensor.begin != covered) {
      throw IntegrityError(IntegrityCode::kOffsetsInvalid, path,
                           fmt::format("tensor '{}' begins at {} in the file, and the one before it ends at {}",
                                       tensor.name, tensor.begin, covered));
    }
    covered = tensor.end;
  }
  if (covered != file_bytes && !allow_trailing) {
    throw IntegrityError(
        IntegrityCode::kOffsetsInvalid, path,
        fmt::format("{} bytes follow the last tensor; every byte must belong to one", file_bytes - covered));
  }
}

}  // namespace

SafetensorsHeader SafetensorsHeader::parse(std::string_view json, Bytes file_bytes, std::string const& path,
                                           SafetensorsLimits const& limits) {
  NORIA_ASSERT(file_bytes >= kLengthField && json.size() <= file_bytes - kLengthField, "header longer than its file");
  SafetensorsJson parsed = parse_safetensors_json(json, path, limits);
  SafetensorsHeader header;
  header.data_begin_ = kLengthField + json.size();
  header.tensors_ = std::move(parsed.tensors);
  header.metadata_ = std::move(parsed.metadata);
  auto& tensors = header.tensors_;

  for (TensorEntry& tensor : tensors) {
    place_tensor(tensor, header.data_begin_, file_bytes - header.data_begin_, path);
  }
  std::ranges::sort(tensors, {}, [](TensorEntry const& t) { return std::tie(t.begin, t.end, t.name); });
  check_cover(tensors, header.data_begin_, file_bytes, limits.allow_trailing, path);

  header.by_name_.resize(tensors.size());
  std::iota(header.by_name_.begin(), header.by_name_.end(), 0U);
  auto const name_of = [&](std::uint32_t index) -> std::string const& { return tensors[index].name; };
  std::ranges::sort(header.by_name_, {}, name_of);
  auto const twice = std::ranges::adjacent_find(header.by_name_, {}, name_of);
  if (twice != header.by_name_.end()) {
    throw IntegrityError(IntegrityCode::kHeaderInvalid, path,
                         fmt::format("in the header: tensor '{}' stands twice", name_of(*twice)));
  }
  return header;
}

TensorEntry const* SafetensorsHeader::find(std::string_view name) const noexcept {
  auto const found =
      std::ranges::lower_bound(by_name_, name, {}, [&](std::uint32_t i) { return std::string_view(tensors_[i].name); });
  if (found == by_name_.end() || tensors_[*found].name != name) {
    return nullptr;
  }
  return &tensors_[*found];
}

SafetensorsFile SafetensorsFile::open(std::filesystem::path const& path, SafetensorsLimits const& limits) {
  SafetensorsFile opened;
  opened.file_ = File::open(path);
  File const& file = opened.file_;
  if (file.size() < kLengthField) {
    throw IntegrityError(IntegrityCode::kHeaderInvalid, file.path(),
                         fmt::format("{} bytes are too few for a safetensors file", file.size()));
  }
  std::array<std::byte, kLengthField> field{};
  file.read_exact(0, field);
  auto const header_bytes = std::bit_cast<std::uint64_t>(field);
  if (header_bytes > limits.header_bytes) {
    throw IntegrityError(IntegrityCode::kHeaderTooLarge, file.path(),
                         fmt::format("the header claims {} bytes; at most {} are allowed. Is this a safetensors file?",
                                     header_bytes, limits.header_bytes));
  }
  if (header_bytes > file.size() - kLengthField) {
    throw IntegrityError(IntegrityCode::kHeaderInvalid, file.path(),
                         fmt::format("the header claims {} bytes and the file has only {}", header_bytes, file.size()));
  }
  std::string json(header_bytes, '\0');
  file.read_exact(kLengthField, std::as_writable_bytes(std::span(json)));
  opened.header_ = SafetensorsHeader::parse(json, file.size(), file.path(), limits);
  file.check_unchanged();
  return opened;
}

TensorEntry const& SafetensorsFile::at(std::string_view name) const {
  TensorEntry const* const tensor = find(name);
  if (tensor == nullptr) {
    throw std::invalid_argument(fmt::format("'{}' has no tensor '{}'", file_.path(), name));
  }
  require_known_dtype(*tensor, file_.path());
  return *tensor;
}

void require_known_dtype(TensorEntry const& tensor, std::string const& path) {
  if (tensor.dtype_bits == 0) {
    throw IntegrityError(IntegrityCode::kDtypeUnknown, path,
                         fmt::format("tensor '{}' has the dtype '{}', which this version of noria does not know",
                                     tensor.name, tensor.dtype));
  }
}

}  // namespace noria

/// Parser and read plan together: whatever a header says, every read stays inside the file and every byte of every
/// tensor goes to one place of its own. A second shape of input goes to the shard index and the manifest.
#include <noria/error.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "format/safetensors.h"
#include "format/shard_index.h"
#include "io/manifest.h"
#include "io/read_plan.h"

namespace {

using noria::Bytes;

void require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

void check_plan(noria::SafetensorsHeader const& header, Bytes file_bytes, std::uint8_t shape) {
  noria::ReadPlanOptions const options{.chunk_bytes = Bytes{64} << (shape & 15U),
                                       .merge_gap_bytes = Bytes{1} << (shape >> 4U)};
  std::vector<noria::ReadPiece> pieces;
  Bytes destination = 0;
  Bytes wanted = 0;
  for (noria::TensorEntry const& tensor : header.tensors()) {
    require(tensor.begin <= tensor.end && tensor.end <= file_bytes && tensor.begin >= header.data_begin());
    require(header.find(tensor.name) == &tensor);
    if (tensor.name.size() % 2 == 0) {  // some are left out, so that there are gaps
      pieces.push_back({.offset = tensor.begin, .length = tensor.bytes(), .destination = destination});
      wanted += tensor.bytes();
      destination = noria::align_up(destination + tensor.bytes(), 64);
    }
  }
  if (wanted / options.chunk_bytes > 100'000) {
    return;  // an honest header of a huge file; nothing new, only slow
  }
  noria::ReadPlan const plan = noria::ReadPlan::make(pieces, options);
  require(plan.wanted_bytes() == wanted && plan.destination_bytes() <= destination);
  Bytes copied = 0;
  Bytes previous_end = 0;
  std::vector<std::pair<Bytes, Bytes>> places;
  for (noria::ReadExtent const& extent : plan.extents()) {
    require(extent.begin >= previous_end && extent.begin < extent.end && extent.end <= file_bytes);
    require(extent.begin / options.chunk_bytes == (extent.end - 1) / options.chunk_bytes);
    previous_end = extent.end;
    for (noria::ReadCopy const& copy : plan.copies(extent)) {
      require(copy.length != 0 && copy.source <= extent.bytes() && copy.length <= extent.bytes() - copy.source);
      places.emplace_back(copy.destination, copy.destination + copy.length);
      copied += copy.length;
    }
  }
  require(copied == wanted);
  std::ranges::sort(places);
  for (std::size_t i = 1; i < places.size(); ++i) {
    require(places[i - 1].second <= places[i].first);
  }
}

void fuzz_header(std::string_view json, std::uint8_t shape, Bytes data_bytes) {
  Bytes const file_bytes = 8 + json.size() + data_bytes;
  try {
    check_plan(noria::SafetensorsHeader::parse(json, file_bytes, "fuzz"), file_bytes, shape);
  } catch (noria::IntegrityError const& error) {
    require(error.code() != noria::IntegrityCode::kUnspecified);
  }
}

template <typename Parse>
void fuzz_text(Parse parse) {
  try {
    parse();
  } catch (noria::IntegrityError const& error) {
    require(error.code() != noria::IntegrityCode::kUnspecified);
  }
}

}  // namespace

// Input: one byte that chooses, one that shapes the plan, two with the size of the data, then the text.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  constexpr std::size_t kPrefix = 4;
  if (size < kPrefix) {
    return 0;
  }
  std::string_view const text(reinterpret_cast<char const*>(data) + kPrefix, size - kPrefix);
  switch (data[0] % 8) {
    case 1:
      fuzz_text([&] { (void)noria::ShardIndex::parse(text, "fuzz"); });
      break;
    case 2:
      fuzz_text([&] { (void)noria::Manifest::parse(text, "fuzz"); });
      break;
    case 3:
      // A file of nearly all the bytes that 64 bits can count.
      fuzz_header(text, data[1], ~Bytes{0} - 8 - text.size() - data[2]);
      break;
    default:
      fuzz_header(text, data[1], static_cast<Bytes>(data[2]) | static_cast<Bytes>(data[3]) << 8U);
  }
  return 0;
}

/// Checkpoint files as a stranger may send them: each is refused with its own code, whatever it claims.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <noria/error.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "format/safetensors.h"
#include "support/checkpoints.h"
#include "support/temp_dir.h"

namespace noria {
namespace {

using testing::safetensors_bytes;

struct Hostile {
  std::string name;
  IntegrityCode code;
  std::string bytes;
  friend std::ostream& operator<<(std::ostream& out, Hostile const& file) { return out << file.name; }
};

std::string tensor(std::string_view name, std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

// One U8 tensor 'w' over the four bytes "data", with parts replaced.
std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return safetensors_bytes("{" + tensor("w", dtype, shape, offsets) + "}", "data");
}

std::string header(std::string_view json) { return safetensors_bytes(json, "data"); }

std::string nested(std::size_t depth) {
  return header(R"({"w":)" + std::string(depth, '[') + std::string(depth, ']') + "}");
}

std::vector<Hostile> hostile_files() {
  using enum IntegrityCode;
  std::string const w = tensor("w", "U8", "[4]", "[0,4]");
  std::string const x = tensor("x", "U8", "[2]", "[0,2]");
  std::string const y = tensor("y", "U8", "[2]", "[2,4]");
  std::vector<Hostile> files{
      {"Empty", kHeaderInvalid, ""},
      {"SevenBytes", kHeaderInvalid, std::string(7, '\0')},
      {"ZeroLengthHeader", kHeaderInvalid, safetensors_bytes("", "data")},
      {"HeaderLongerThanFile", kHeaderInvalid, safetensors_bytes("{}", "", 4096)},
      {"HeaderLongerThanLimit", kHeaderTooLarge, safetensors_bytes("{}", "", 100'000'001)},
      {"HeaderOfTwoToThe64", kHeaderTooLarge, safetensors_bytes("{}", "", ~std::uint64_t{0})},
      {"HeaderWrapsAround", kHeaderTooLarge, safetensors_bytes("{}", "", ~std::uint64_t{0} - 7)},
      {"NoBraceFirst", kHeaderInvalid, header(" {" + w + "}")},
      {"ByteOrderMark", kHeaderInvalid, header("\xef\xbb\xbf{" + w + "}")},
      {"AnArray", kHeaderInvalid, header("[1,2]")},
      {"TrailingGarbage", kHeaderInvalid, header("{" + w + "}x")},
      {"TrailingNewline", kHeaderInvalid, header("{" + w + "}\n")},
      {"SecondObject", kHeaderInvalid, header("{" + w + "}{}")},
      {"HiddenBehindAZeroByte", kHeaderInvalid, header("{" + w + std::string("}\0,\"v\":{}}", 10))},
      {"Truncated", kHeaderInvalid, header("{" + w)},
      {"BadUtf8InName", kHeaderInvalid, header("{" + tensor("w\xff", "U8", "[4]", "[0,4]") + "}")},
      {"LoneSurrogateInName", kHeaderInvalid, header("{" + tensor("\\ud800", "U8", "[4]", "[0,4]") + "}")},
      {"Comment", kHeaderInvalid, header("{/* */" + w + "}")},
      {"DuplicateTensor", kHeaderInvalid,
       safetensors_bytes("{" + x + "," + tensor("x", "U8", "[2]", "[2,4]") + "}", "data")},
      {"DuplicateMetadata", kHeaderInvalid, header(R"({"__metadata__":{},"__metadata__":{},)" + w + "}")},
      {"DuplicateMetadataKey", kHeaderInvalid, header(R"({"__metadata__":{"a":"1","a":"2"},)" + w + "}")},
      {"MetadataIsAString", kHeaderInvalid, header(R"({"__metadata__":"pt",)" + w + "}")},
      {"MetadataValueIsANumber", kHeaderInvalid, header(R"({"__metadata__":{"a":1},)" + w + "}")},
      {"MetadataNested", kHeaderInvalid, header(R"({"__metadata__":{"a":{"b":"c"}},)" + w + "}")},
      {"DuplicateField", kHeaderInvalid,
       header(R"({"w":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})")},
      {"MissingField", kHeaderInvalid, header(R"({"w":{"dtype":"U8","shape":[4]}})")},
      {"UnknownField", kHeaderInvalid,
       header(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"strides":[1]}})")},
      {"DtypeIsANumber", kHeaderInvalid, header(R"({"w":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})")},
      {"DtypeIsHuge", kHeaderInvalid, one(std::string(100'000, 'U'), "[4]", "[0,4]")},
      {"ShapeIsAnObject", kHeaderInvalid, one("U8", "{}", "[0,4]")},
      {"NegativeExtent", kHeaderInvalid, one("U8", "[-4]", "[0,4]")},
      {"FractionalExtent", kHeaderInvalid, one("U8", "[4.0]", "[0,4]")},
      {"ExponentExtent", kHeaderInvalid, one("U8", "[4e0]", "[0,4]")},
      {"ExtentOverTwoToThe64", kHeaderInvalid, one("U8", "[18446744073709551616]", "[0,4]")},
      {"NumberOfAMillionDigits", kHeaderInvalid, one("U8", "[" + std::string(1'000'000, '9') + "]", "[0,4]")},
      {"NullExtent", kHeaderInvalid, one("U8", "[null]", "[0,4]")},
      {"RankBomb", kHeaderInvalid,
       one(
           "U8",
           "[4" +
               [] {
                 std::string ones;
                 for (int i = 0; i < 64; ++i) {
                   ones += ",1";
                 }
                 return ones;
               }() +
               "]",
           "[0,4]")},
      {"OneOffset", kHeaderInvalid, one("U8", "[4]", "[0]")},
      {"ThreeOffsets", kHeaderInvalid, one("U8", "[4]", "[0,4,4]")},
      {"NegativeOffset", kHeaderInvalid, one("U8", "[4]", "[-1,3]")},
      {"DeepArrays", kHeaderInvalid, nested(1'000'000)},
      {"NameOf5000Bytes", kHeaderInvalid, header("{" + tensor(std::string(5000, 'n'), "U8", "[4]", "[0,4]") + "}")},
      {"ShapeProductOverflows", kSizeOverflow, one("U8", "[4294967296,4294967296,4]", "[0,4]")},
      {"ShapeTimesDtypeOverflows", kSizeOverflow, one("F64", "[2305843009213693952]", "[0,4]")},
      {"ShapeWrapsToTheRightSize", kSizeOverflow, one("U8", "[9223372036854775810,2]", "[0,4]")},
      {"HalfAByte", kTensorInvalid, one("F4", "[7]", "[0,4]")},
      {"DtypeTooWide", kTensorInvalid, one("F32", "[4]", "[0,4]")},
      {"ShapeTooSmall", kTensorInvalid, one("U8", "[3]", "[0,4]")},
      {"EmptyShapeWithBytes", kTensorInvalid, one("U8", "[0]", "[0,4]")},
      {"BeginAfterEnd", kOffsetsInvalid, one("U8", "[4]", "[4,0]")},
      {"EndBeyondTheFile", kOffsetsInvalid, one("U8", "[5]", "[0,5]")},
      {"OffsetsNearTwoToThe64", kOffsetsInvalid, one("U8", "[4]", "[18446744073709551611,18446744073709551615]")},
      {"Overlap", kOffsetsInvalid, header("{" + w + "," + y + "}")},
      {"SameBytesTwice", kOffsetsInvalid, header("{" + w + "," + tensor("v", "U8", "[4]", "[0,4]") + "}")},
      {"HoleBetween", kOffsetsInvalid, header("{" + tensor("x", "U8", "[1]", "[0,1]") + "," + y + "}")},
      {"HoleAtTheStart", kOffsetsInvalid, header("{" + y + "}")},
      {"BytesAfterTheLast", kOffsetsInvalid, header("{" + x + "}")},
      {"EmptyTensorInsideAnother", kOffsetsInvalid, header("{" + w + "," + tensor("z", "U8", "[0]", "[2,2]") + "}")},
      {"UnknownDtypeOverlaps", kOffsetsInvalid, header("{" + w + "," + tensor("z", "Q9", "[1]", "[0,2]") + "}")},
  };
  return files;
}

class HostileFile : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileFile, IsRefusedWithItsCode) {
  testing::TempDir const folder;
  testing::write_file(folder / "evil.safetensors", GetParam().bytes);
  try {
    SafetensorsFile::open(folder / "evil.safetensors");
    FAIL() << "accepted";
  } catch (IntegrityError const& error) {
    EXPECT_STREQ(integrity_code_name(error.code()), integrity_code_name(GetParam().code)) << error.what();
    EXPECT_EQ(error.path(), (folder / "evil.safetensors").string());
    EXPECT_LT(std::string_view(error.what()).size(), 10'000U);
  }
}

INSTANTIATE_TEST_SUITE_P(All, HostileFile, ::testing::ValuesIn(hostile_files()),
                         [](auto const& info) { return info.param.name; });

TEST(HostileFiles, TensorCountIsLimited) {
  std::string json = "{";
  for (int i = 0; i < 11; ++i) {
    json += fmt::format("{}{}", i == 0 ? "" : ",", tensor(fmt::format("t{}", i), "U8", "[0]", "[0,0]"));
  }
  json += "}";
  EXPECT_EQ(SafetensorsHeader::parse(json, 8 + json.size(), "", {.tensors = 11}).tensors().size(), 11U);
  EXPECT_THROW(SafetensorsHeader::parse(json, 8 + json.size(), "", {.tensors = 10}), IntegrityError);
}

// A sparse file with a header of the largest allowed length: memory stays within a small multiple of it.
TEST(HostileFiles, TheLargestHeaderIsRefusedInBoundedMemory) {
  Bytes const largest = SafetensorsLimits{}.header_bytes;
  testing::TempDir const folder;
  testing::write_file(
      folder / "big.safetensors",
      safetensors_bytes(R"({"w":{"dtype":")" + std::string(largest - 16, 'F') + R"("}})", "data", largest));
  rusage before{};
  rusage after{};
  ::getrusage(RUSAGE_SELF, &before);
  EXPECT_THROW(SafetensorsFile::open(folder / "big.safetensors"), IntegrityError);
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(static_cast<Bytes>(after.ru_maxrss - before.ru_maxrss) * 1024, 6 * largest);
}

}  // namespace
}  // namespace noria

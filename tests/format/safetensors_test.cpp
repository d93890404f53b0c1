#include "format/safetensors.h"

#include <gtest/gtest.h>
#include <noria/error.h>
#include <sys/stat.h>

#include <stdexcept>

#include "support/checkpoints.h"
#include "support/temp_dir.h"

namespace noria {
namespace {

using testing::safetensors_bytes;
using testing::TempDir;
using testing::write_file;

class Safetensors : public ::testing::Test {
 protected:
  SafetensorsFile opened(std::string_view bytes, SafetensorsLimits const& limits = {}) {
    write_file(folder_ / "model.safetensors", bytes);
    return SafetensorsFile::open(folder_ / "model.safetensors", limits);
  }
  TempDir folder_;
};

TEST_F(Safetensors, ListsTensorsInFileOrderWithFileOffsets) {
  std::string const json =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   )";
  SafetensorsFile const file = opened(safetensors_bytes(json, "AAAAbbbbbbbbbbbb"));
  Bytes const data = 8 + json.size();
  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[0].begin, data);
  EXPECT_EQ(file.tensors()[1].name, "b");
  EXPECT_EQ(file.tensors()[1].dtype, "BF16");
  EXPECT_EQ(file.tensors()[1].dtype_bits, 16U);
  EXPECT_EQ(file.tensors()[1].shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(file.tensors()[1].begin, data + 4);
  EXPECT_EQ(file.tensors()[1].end, data + 16);
  EXPECT_EQ(file.header().metadata().at("format"), "pt");
  EXPECT_EQ(file.header().data_begin(), data);
}

TEST_F(Safetensors, FindsByNameAndAnswersNullForOthers) {
  SafetensorsFile const file = opened(safetensors_bytes({{"w", "U8", {2}, "xy"}, {"v", "U8", {1}, "z"}}));
  ASSERT_NE(file.find("w"), nullptr);
  EXPECT_EQ(file.find("w")->bytes(), 2U);
  EXPECT_EQ(file.find("u"), nullptr);
  EXPECT_EQ(file.find(""), nullptr);
  EXPECT_THROW((void)file.at("u"), std::invalid_argument);
}

TEST_F(Safetensors, ReadsTheBytesThatTheHeaderNames) {
  SafetensorsFile const file = opened(safetensors_bytes({{"w", "U8", {2}, "xy"}, {"v", "U8", {3}, "abc"}}));
  std::string bytes(3, '\0');
  file.file().read_exact(file.at("v").begin, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(bytes, "abc");
}

TEST_F(Safetensors, AllowsNoTensorsScalarsAndEmptyTensors) {
  EXPECT_TRUE(opened(safetensors_bytes("{}", "")).tensors().empty());
  SafetensorsFile const file = opened(safetensors_bytes({{"before", "F32", {0, 7}, ""},
                                                         {"scalar", "F64", {}, "12345678"},
                                                         {"after", "I64", {18446744073709551615U, 0}, ""}}));
  EXPECT_EQ(file.at("scalar").bytes(), 8U);
  EXPECT_EQ(file.at("after").bytes(), 0U);
}

TEST_F(Safetensors, CountsSubByteElementsInBits) {
  SafetensorsFile const file = opened(safetensors_bytes({{"f4", "F4", {6}, "abc"}, {"f6", "F6_E2M3", {4}, "abc"}}));
  EXPECT_EQ(file.at("f4").bytes(), 3U);
  EXPECT_EQ(file.at("f6").bytes(), 3U);
}

TEST_F(Safetensors, KeepsUnknownDtypesAndRefusesThemWhenAsked) {
  SafetensorsFile const file = opened(safetensors_bytes({{"new", "F2_E1M0", {5}, "ab"}, {"old", "U8", {1}, "c"}}));
  EXPECT_EQ(file.find("new")->dtype, "F2_E1M0");
  EXPECT_EQ(file.at("old").bytes(), 1U);
  try {
    (void)file.at("new");
    FAIL() << "an unknown dtype was handed out";
  } catch (IntegrityError const& error) {
    EXPECT_EQ(error.code(), IntegrityCode::kDtypeUnknown);
    EXPECT_NE(std::string(error.what()).find("F2_E1M0"), std::string::npos);
  }
}

TEST_F(Safetensors, TrailingBytesAreAcceptedOnlyWhenAskedFor) {
  std::string const padded = safetensors_bytes({{"w", "U8", {2}, "xy"}}) + "padding";
  EXPECT_THROW(opened(padded), IntegrityError);
  EXPECT_EQ(opened(padded, {.allow_trailing = true}).at("w").bytes(), 2U);
}

TEST_F(Safetensors, RefusesWhatIsNoRegularFileWithoutBlocking) {
  EXPECT_THROW(SafetensorsFile::open(folder_.path()), StorageError);
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(SafetensorsFile::open(folder_ / "pipe"), StorageError);
  EXPECT_THROW(SafetensorsFile::open("/dev/null"), StorageError);
}

TEST_F(Safetensors, AMissingFileIsAStorageErrorWithPathAndErrno) {
  try {
    SafetensorsFile::open(folder_ / "absent");
    FAIL() << "opened a file that is not there";
  } catch (StorageError const& error) {
    EXPECT_EQ(error.error_number(), ENOENT);
    EXPECT_EQ(error.path(), (folder_ / "absent").string());
  }
}

}  // namespace
}  // namespace noria

#include "io/scratch_file.h"

#include <gtest/gtest.h>
#include <noria/error.h>

#include <array>
#include <cerrno>
#include <numeric>
#include <vector>

#include "io/reader.h"
#include "support/temp_dir.h"

namespace noria {
namespace {

std::vector<std::byte> counting(std::size_t size, int first) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(static_cast<std::size_t>(first) + i);
  }
  return bytes;
}

TEST(ScratchFile, WhatWasWrittenLastIsRead) {
  testing::TempDir const folder;
  ScratchFile scratch(folder.path(), Bytes{1} << 20U);
  Reader reader;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::byte> const bytes = counting(10'000, round);
    scratch.write(4096, bytes);
    std::vector<std::byte> direct(bytes.size());
    scratch.source()->file().read_exact(4096, direct);
    EXPECT_EQ(direct, bytes);
    std::vector<std::byte> read(bytes.size());
    std::array const pieces{ReadPiece{.offset = 4096, .length = read.size()}};
    reader
        .start({.files = {scratch.source()},
                .plan = std::make_shared<ReadPlan const>(ReadPlan::make(pieces)),
                .destination = read})
        .wait();
    EXPECT_EQ(read, bytes) << "round " << round;
  }
}

TEST(ScratchFile, HasNoNameAndTakesRoomForWhatWasWrittenOnly) {
  testing::TempDir const folder;
  ScratchFile scratch(folder.path(), Bytes{1} << 40U);
  scratch.write(0, counting(100, 1));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ScratchFile, AFolderThatIsNotThereIsNamed) {
  testing::TempDir const folder;
  try {
    ScratchFile const scratch(folder / "missing", 4096);
    FAIL() << "nothing was thrown";
  } catch (StorageError const& error) {
    EXPECT_EQ(error.error_number(), ENOENT);
    EXPECT_NE(std::string(error.what()).find("missing"), std::string::npos);
  }
}

}  // namespace
}  // namespace noria

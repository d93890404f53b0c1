#include "io/offload_writer.h"

#include <gtest/gtest.h>
#include <noria/error.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <set>

#include "io/manifest.h"
#include "io/offload_store.h"
#include "support/offload_model.h"
#include "support/temp_dir.h"

namespace noria {
namespace {

using testing::OffloadModel;

class OffloadFolder : public ::testing::Test {
 protected:
  std::filesystem::path folder() const { return base_ / "unet"; }
  std::size_t data_files() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(std::filesystem::directory_iterator(folder()),
                              [](auto const& entry) { return entry.path().extension() == ".bin"; }));
  }
  std::filesystem::path data_file() const {
    return folder() / Manifest::parse(testing::read_file(folder() / kManifestName), "").data_file;
  }
  testing::TempDir base_;
};

TEST_F(OffloadFolder, BytesComeBackWithTheirShapesAndStrides) {
  OffloadModel const model(1);
  auto const store = model.open_or_write(folder());
  EXPECT_EQ(model.differing_tensor(*store), "");
  EXPECT_TRUE(store->as_published());
  store->verify();
  auto const again = OffloadStore::open(folder());
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->manifest().tensors, store->manifest().tensors);
}

TEST_F(OffloadFolder, ASecondRunReusesWhatMatches) {
  OffloadModel const model(1);
  (void)model.open_or_write(folder());
  int writes = 0;
  auto const store = OffloadStore::open_or_write(folder(), model.source(), model.tensors(),
                                                 [&](OffloadWriter& writer) { ++writes, model.write(writer); });
  EXPECT_EQ(writes, 0);
  EXPECT_EQ(model.differing_tensor(*store), "");
}

TEST_F(OffloadFolder, AnotherSourceShapeOrStrideIsWrittenAgain) {
  OffloadModel const model(1);
  for (int variation = 0; variation < 3; ++variation) {
    SCOPED_TRACE(variation);
    (void)model.open_or_write(folder());
    auto source = model.source();
    auto tensors = model.tensors();
    if (variation == 0) {
      source["checkpoint"] = "another";
    } else if (variation == 1) {
      std::swap(tensors[0].shape[0], tensors[0].shape[1]);
    } else {
      std::swap(tensors[0].strides[0], tensors[0].strides[1]);
    }
    int writes = 0;
    (void)OffloadStore::open_or_write(folder(), source, tensors, [&](OffloadWriter& writer) {
      ++writes;
      model.write(writer, tensors);
    });
    EXPECT_EQ(writes, 1);
  }
}

TEST_F(OffloadFolder, NewWeightsReplaceOldOnesOnlyWhenNobodyReadsThem) {
  OffloadModel const first(1);
  OffloadModel const second(2);
  auto reader = first.open_or_write(folder());
  auto const writer = second.open_or_write(folder());
  EXPECT_EQ(second.differing_tensor(*writer), "");
  EXPECT_EQ(first.differing_tensor(*reader), "") << "the reader's weights were taken away";
  reader->data()->file().check_unchanged();
  EXPECT_EQ(data_files(), 2U);
  reader.reset();
  (void)first.open_or_write(folder());
  EXPECT_EQ(data_files(), 2U) << "the second's are still read, the first's old ones are gone";
}

TEST_F(OffloadFolder, AWriterThatFailsLeavesEverythingAsItWas) {
  OffloadModel const model(1);
  (void)model.open_or_write(folder());
  EXPECT_THROW((void)OffloadStore::open_or_write(folder(), {{"checkpoint", "other"}}, model.tensors(),
                                                 [&](OffloadWriter& writer) {
                                                   model.write(writer);
                                                   throw std::runtime_error("the model is gone");
                                                 }),
               std::runtime_error);
  EXPECT_EQ(data_files(), 1U);
  EXPECT_EQ(model.differing_tensor(*OffloadStore::open(folder())), "");
}

TEST_F(OffloadFolder, DamageIsFoundAndRepaired) {
  OffloadModel const model(1);
  (void)model.open_or_write(folder());
  for (std::string const damage : {"flipped", "truncated", "emptied manifest", "edited manifest", "missing data"}) {
    SCOPED_TRACE(damage);
    if (damage == "flipped") {
      std::string bytes = testing::read_file(data_file());
      bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
      testing::write_file(data_file(), bytes);
      try {
        OffloadStore::open(folder())->verify();
        ADD_FAILURE() << "a flipped bit was not found";
      } catch (IntegrityError const& error) {
        EXPECT_EQ(error.code(), IntegrityCode::kChecksumMismatch);
      }
    } else if (damage == "truncated") {
      std::filesystem::resize_file(data_file(), 100);
      EXPECT_EQ(OffloadStore::open(folder()), nullptr);
    } else if (damage == "emptied manifest") {
      testing::write_file(folder() / kManifestName, std::string_view());
    } else if (damage == "edited manifest") {
      std::string text = testing::read_file(folder() / kManifestName);
      text.replace(text.find("F32"), 3, "I32");
      testing::write_file(folder() / kManifestName, text);
      EXPECT_EQ(OffloadStore::open(folder()), nullptr);
    } else {
      std::filesystem::remove(data_file());
    }
    EXPECT_EQ(model.differing_tensor(*model.open_or_write(folder())), "");
  }
}

TEST_F(OffloadFolder, ACopiedFolderIsVerifiedAndUsed) {
  OffloadModel const model(1);
  (void)model.open_or_write(folder());
  std::filesystem::path const copy = base_ / "copy";
  std::filesystem::copy(folder(), copy);
  int writes = 0;
  auto const store =
      OffloadStore::open_or_write(copy, model.source(), model.tensors(), [&](OffloadWriter& /*writer*/) { ++writes; });
  EXPECT_EQ(writes, 0);
  EXPECT_FALSE(store->as_published());
  EXPECT_EQ(model.differing_tensor(*store), "");
}

TEST_F(OffloadFolder, TwoProcessesAtOnceWriteOnceAndAgree) {
  OffloadModel const model(1);
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    pid_t const child = ::fork();
    if (child == 0) {
      int status = 1;
      try {
        bool wrote = false;
        auto const store =
            OffloadStore::open_or_write(folder(), model.source(), model.tensors(), [&](OffloadWriter& writer) {
              model.write(writer);
              wrote = true;
            });
        status = model.differing_tensor(*store).empty() ? (wrote ? 2 : 3) : 1;
      } catch (...) {
        status = 1;
      }
      ::_exit(status);
    }
    children.push_back(child);
  }
  std::multiset<int> statuses;
  for (pid_t const child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    statuses.insert(WEXITSTATUS(status));
  }
  EXPECT_EQ(statuses, (std::multiset<int>{2, 3, 3, 3}));
  EXPECT_EQ(data_files(), 1U);
}

// A file size limit stands for a full disk: the same calls fail at the same places.
TEST_F(OffloadFolder, AFullDiskIsAClearErrorAndNoHalfFile) {
  OffloadModel const model(1);
  (void)model.open_or_write(folder());
  pid_t const child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit const limit{.rlim_cur = 100'000, .rlim_max = 100'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int status = 1;
    try {
      (void)OffloadModel(2).open_or_write(folder());
    } catch (StorageError const& error) {
      bool const clear = std::string_view(error.what()).find("the model is as it was") != std::string_view::npos;
      status = error.error_number() == EFBIG && clear ? 0 : 2;
    } catch (...) {
      status = 3;
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(data_files(), 1U);
  EXPECT_TRUE(std::ranges::none_of(std::filesystem::directory_iterator(folder()),
                                   [](auto const& entry) { return entry.path().extension() == ".tmp"; }));
  EXPECT_EQ(model.differing_tensor(*OffloadStore::open(folder())), "");
}

TEST(ComponentFolder, NeverMapsTwoNamesToOne) {
  std::vector<std::string> const names{
      "", ".", "..", "unet", "Unet", "a/b", "a%2Fb", "a.b", "%", "%25", std::string(300, 'x'), std::string(301, 'x')};
  std::set<std::string> folders;
  for (std::string const& name : names) {
    std::string const folder = component_folder(name);
    EXPECT_TRUE(folders.insert(folder).second) << name << " -> " << folder;
    EXPECT_EQ(folder.find('/'), std::string::npos);
    EXPECT_NE(folder.front(), '.');
    EXPECT_LE(folder.size(), 255U);
  }
  EXPECT_EQ(component_folder("transformer_2"), "transformer_2");
}

TEST(ManifestText, DamagedOnesAreRefused) {
  Manifest manifest;
  manifest.data_file = "weights-1.bin";
  manifest.data_bytes = 4096;
  manifest.checksums = {Checksum{1, 2}};
  manifest.tensors = {{.name = "w", .dtype = "U8", .shape = {4096}, .strides = {1}, .offset = 0, .bytes = 4096}};
  EXPECT_EQ(Manifest::parse(manifest.to_json(), "").tensors, manifest.tensors);
  auto const refused = [](Manifest const& bad) {
    try {
      (void)Manifest::parse(bad.to_json(), "");
      return false;
    } catch (IntegrityError const& error) {
      return error.code() == IntegrityCode::kManifestInvalid;
    }
  };
  Manifest bad = manifest;
  bad.tensors[0].offset = ~Bytes{0};
  EXPECT_TRUE(refused(bad));
  bad = manifest;
  bad.tensors.push_back(manifest.tensors[0]);
  EXPECT_TRUE(refused(bad));
  bad = manifest;
  bad.data_file = "../weights-1.bin";
  EXPECT_TRUE(refused(bad));
  bad = manifest;
  bad.checksums.clear();
  EXPECT_TRUE(refused(bad));
  bad = manifest;
  bad.chunk_bytes = 0;
  EXPECT_TRUE(refused(bad));
  for (std::string const text : {"", "{}", "[]", "null", R"({"noria":{},"xxh3_128":"0"})"}) {
    EXPECT_THROW((void)Manifest::parse(text, ""), IntegrityError) << text;
  }
}

}  // namespace
}  // namespace noria

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <noria/checkpoint.h>
#include <noria/error.h>

#include <stdexcept>

#include "format/checkpoint_layout.h"
#include "format/shard_index.h"
#include "format/shard_set.h"
#include "support/checkpoints.h"
#include "support/temp_dir.h"

namespace noria {
namespace {

using testing::safetensors_bytes;
using testing::write_file;

class CheckpointFolder : public ::testing::Test {
 protected:
  void shard(std::string const& name, std::vector<testing::TestTensor> const& tensors) {
    write_file(folder_ / name, safetensors_bytes(tensors));
  }
  void index(std::string const& name, std::string_view weight_map) {
    write_file(folder_ / name, fmt::format(R"({{"metadata":{{"total_size":4}},"weight_map":{{{}}}}})", weight_map));
  }
  // Two shards 'model-1.safetensors' (a, b) and 'model-2.safetensors' (c), with this index.
  void sharded(std::string_view weight_map) {
    shard("model-1.safetensors", {{"a", "U8", {1}, "A"}, {"b", "U8", {2}, "BB"}});
    shard("model-2.safetensors", {{"c", "U8", {1}, "C"}});
    index("model.safetensors.index.json", weight_map);
  }
  void expect_index_invalid(std::string_view weight_map) {
    sharded(weight_map);
    expect_index_invalid();
  }
  void expect_index_invalid() {
    try {
      (void)Checkpoint::open(folder_.path());
      ADD_FAILURE() << "accepted";
    } catch (IntegrityError const& error) {
      EXPECT_EQ(error.code(), IntegrityCode::kIndexInvalid) << error.what();
    }
  }
  testing::TempDir folder_;
};

constexpr std::string_view kGoodMap =
    R"("a":"model-1.safetensors","b":"model-1.safetensors","c":"model-2.safetensors")";

TEST_F(CheckpointFolder, ShardsAreOneCheckpoint) {
  sharded(kGoodMap);
  Checkpoint const checkpoint = Checkpoint::open(folder_.path());
  EXPECT_EQ(checkpoint.file_count(), 2U);
  EXPECT_EQ(checkpoint.bytes(), 4U);
  ASSERT_EQ(checkpoint.tensors().size(), 3U);
  EXPECT_EQ(checkpoint.tensors()[2].name, "c");
  EXPECT_EQ(checkpoint.find("c")->file, (folder_ / "model-2.safetensors").string());
  EXPECT_EQ(checkpoint.find("b")->bytes, 2U);
  EXPECT_FALSE(checkpoint.find("d"));
  std::string const bytes = testing::read_file(folder_ / "model-1.safetensors");
  EXPECT_EQ(bytes.substr(checkpoint.find("b")->offset, 2), "BB");
}

TEST_F(CheckpointFolder, LayoutsOfDiffusersAndTransformersAreFound) {
  for (std::string const name : {"diffusion_pytorch_model", "model", "adapter_model"}) {
    for (std::string const variant : {"", "fp16"}) {
      SCOPED_TRACE(fmt::format("{} {}", name, variant));
      std::string const dotted = variant.empty() ? "" : "." + variant;
      testing::TempDir const folder;
      std::string const index_name = fmt::format("{}.safetensors.index{}.json", name, dotted);
      std::string const shard_name = fmt::format("{}{}-00001-of-00001.safetensors", name, dotted);
      write_file(folder / shard_name, safetensors_bytes({{"w", "U8", {1}, "s"}}));
      write_file(folder / index_name, fmt::format(R"({{"weight_map":{{"w":"{}"}}}})", shard_name));
      EXPECT_EQ(find_checkpoint(folder.path(), variant)->index, folder / index_name);
      EXPECT_EQ(Checkpoint::open(folder.path(), variant).find("w")->file, (folder / shard_name).string());

      std::string const single = name + dotted + ".safetensors";
      write_file(folder / single, safetensors_bytes({{"w", "U8", {1}, "w"}}));
      EXPECT_EQ(find_checkpoint(folder.path(), variant)->single, folder / single);
      EXPECT_THROW((void)Checkpoint::open(folder.path(), "other"), std::invalid_argument);
    }
  }
}

TEST_F(CheckpointFolder, TheOnlyFileIsTakenAndAChoiceIsAnError) {
  EXPECT_THROW((void)Checkpoint::open(folder_.path()), std::invalid_argument);
  shard("anything.safetensors", {{"w", "U8", {1}, "w"}});
  EXPECT_EQ(Checkpoint::open(folder_.path()).file_count(), 1U);
  EXPECT_EQ(Checkpoint::open(folder_ / "anything.safetensors").file_count(), 1U);
  shard("another.safetensors", {{"w", "U8", {1}, "w"}});
  EXPECT_THROW((void)Checkpoint::open(folder_.path()), std::invalid_argument);
}

TEST_F(CheckpointFolder, AMissingShardIsNamed) {
  sharded(kGoodMap);
  std::filesystem::remove(folder_ / "model-2.safetensors");
  try {
    (void)Checkpoint::open(folder_.path());
    FAIL() << "opened without its shard";
  } catch (IntegrityError const& error) {
    EXPECT_EQ(error.code(), IntegrityCode::kIndexInvalid);
    EXPECT_NE(std::string_view(error.what()).find("model-2.safetensors"), std::string_view::npos);
  }
}

TEST_F(CheckpointFolder, ANameInNoShardIsRefused) {
  expect_index_invalid(R"("a":"model-1.safetensors","zz":"model-2.safetensors")");
}

TEST_F(CheckpointFolder, ANameInAnotherShardIsRefused) {
  expect_index_invalid(R"("a":"model-2.safetensors","b":"model-1.safetensors","c":"model-2.safetensors")");
}

TEST_F(CheckpointFolder, ANameTwiceIsRefused) {
  expect_index_invalid(R"("a":"model-1.safetensors","a":"model-2.safetensors")");
}

TEST_F(CheckpointFolder, ATensorInTwoShardsIsRefused) {
  sharded(kGoodMap);
  shard("model-2.safetensors", {{"c", "U8", {1}, "C"}, {"a", "U8", {1}, "X"}});
  expect_index_invalid();
}

TEST_F(CheckpointFolder, FilesElsewhereAreRefused) {
  for (char const* const place :
       {"../model-1.safetensors", "/etc/x.safetensors", "sub/x.safetensors", R"(..\\x.safetensors)", ".safetensors",
        "..", "", "model-1.bin", R"(x\u0000.safetensors)", "..safetensors"}) {
    SCOPED_TRACE(place);
    expect_index_invalid(fmt::format(R"("a":"{}")", place));
  }
}

TEST_F(CheckpointFolder, WhatIsNoIndexIsRefused) {
  for (std::string const& text :
       {std::string(""), std::string("[]"), std::string("{}"), std::string(R"({"weight_map":[]})"),
        std::string(R"({"weight_map":"x"})"), std::string(R"({"weight_map":{"a":1}})"),
        std::string(R"({"weight_map":{"a":{}}})"), std::string(R"({"weight_map":{"a":["x"]}})"),
        std::string(R"({"weight_map":{},"weight_map":{}})"), std::string(R"({"weight_map":{}})") + "x",
        R"({"metadata":)" + std::string(100'000, '[') + std::string(100'000, ']') + R"(,"weight_map":{}})",
        std::string("{\"weight_map\":{}}\0{", 18), std::string(R"("weight_map")"),
        fmt::format(R"({{"weight_map":{{"{}":"model-1.safetensors"}}}})", std::string(5000, 'n'))}) {
    SCOPED_TRACE(text.substr(0, 60));
    EXPECT_THROW((void)ShardIndex::parse(text, "index"), IntegrityError);
  }
}

TEST_F(CheckpointFolder, OtherFieldsOfAnIndexAreSteppedOver) {
  ShardIndex const index = ShardIndex::parse(
      R"({"metadata":{"total_size":1.5e3,"weight_map":{"x":1},"list":[null,true,[-1]]},"weight_map":{"a":"m.safetensors"}})",
      "index");
  ASSERT_EQ(index.tensors.size(), 1U);
  EXPECT_EQ(index.tensors[0].first, "a");
  EXPECT_EQ(index.files, std::vector<std::string>{"m.safetensors"});
}

TEST_F(CheckpointFolder, PipelineComponentsAreThoseWithWeights) {
  write_file(folder_ / "model_index.json",
             R"({"_class_name":"P","unet":["diffusers","U"],"vae":["diffusers","V"],"safety_checker":[null,null],)"
             R"("scheduler":["diffusers","S"],"scale":[1,2]})");
  for (std::string const name : {"unet", "vae", "scheduler", "safety_checker"}) {
    std::filesystem::create_directory(folder_ / name);
  }
  shard("unet/diffusion_pytorch_model.safetensors", {{"w", "U8", {1}, "w"}});
  shard("vae/diffusion_pytorch_model.fp16.safetensors", {{"w", "U8", {1}, "w"}});
  EXPECT_EQ(Checkpoint::components(folder_.path()), (std::vector<std::string>{"unet", "vae"}));
  EXPECT_EQ(Checkpoint::components(folder_.path(), "fp16"), (std::vector<std::string>{"unet", "vae"}));
  EXPECT_TRUE(Checkpoint::components(folder_ / "unet").empty());
  write_file(folder_ / "model_index.json", R"({"../unet":["diffusers","U"]})");
  EXPECT_THROW((void)Checkpoint::components(folder_.path()), IntegrityError);
}

TEST_F(CheckpointFolder, OffersTheShardsToReaders) {
  sharded(kGoodMap);
  ShardSet const shards = ShardSet::open(folder_.path());
  EXPECT_EQ(shards.files().size(), 2U);
  EXPECT_EQ(shards.at("c").file, 1U);
  EXPECT_THROW((void)shards.at("d"), std::invalid_argument);
  shards.check_unchanged();
  write_file(folder_ / "model-1.safetensors", "short");
  EXPECT_THROW(shards.check_unchanged(), IntegrityError);
}

}  // namespace
}  // namespace noria

#include "sim/runtime/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <noria/bytes.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace noria::sim {
namespace {

using namespace noria::literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Profile, TheNineMachinesAreThere) {
  EXPECT_THAT(profile_names(), ElementsAre("rtx4090", "rtx3060-12g", "l20", "a100-40g", "h100", "h200", "arc-b580",
                                           "mps-m3max", "npu-910b"));
}

TEST(Profile, EveryFigureOfEveryMachineHasASource) {
  auto const all = nlohmann::json::parse(profiles_json());
  for (auto const& [name, figures] : all.items()) {
    for (auto const& [key, value] : figures.items()) {
      if (key == "title" || key == "source" || key == "unified_memory") {
        continue;
      }
      EXPECT_TRUE(figures.at("source").contains(key)) << name << " lacks the source of " << key;
    }
  }
}

TEST(Profile, FiguresAreReadInSiUnits) {
  Profile const card = profile("rtx4090");
  EXPECT_DOUBLE_EQ(card.peak(ComputeType::kFloat32), 82.6e12);
  EXPECT_DOUBLE_EQ(card.memory_bytes_per_second, 1.008e12);
  EXPECT_DOUBLE_EQ(card.h2d_bytes_per_second, 26e9);
  EXPECT_EQ(card.capacity_bytes, 24_GiB);
  EXPECT_FALSE(card.unified_memory);
  EXPECT_TRUE(profile("mps-m3max").unified_memory);
}

TEST(Profile, PlausibleOnEveryMachine) {
  for (auto const& name : profile_names()) {
    Profile const machine = profile(name);
    EXPECT_GE(machine.peak(ComputeType::kFloat16), machine.peak(ComputeType::kFloat32)) << name;
    EXPECT_GE(machine.memory_bytes_per_second, machine.h2d_bytes_per_second) << name;
    EXPECT_GE(machine.h2d_bytes_per_second, machine.pageable_bytes_per_second) << name;
    EXPECT_GT(machine.launch_seconds, 0) << name;
  }
}

TEST(Profile, UnlistedArithmeticRunsAtTheRateItIsEmulatedIn) {
  Profile const card = profile("rtx3060-12g");
  EXPECT_DOUBLE_EQ(card.peak(ComputeType::kFloat8), card.peak(ComputeType::kFloat16));
  EXPECT_DOUBLE_EQ(profile("arc-b580").peak(ComputeType::kFloat64), 13.7e12 / 32);
}

TEST(Profile, OverridesReplaceSingleFigures) {
  Profile const base = profile("l20");
  Profile const changed = with_overrides(base, R"({"h2d_bytes_per_second": 5e9, "flops": {"float16": 1e12}})");
  EXPECT_DOUBLE_EQ(changed.h2d_bytes_per_second, 5e9);
  EXPECT_DOUBLE_EQ(changed.peak(ComputeType::kFloat16), 1e12);
  EXPECT_DOUBLE_EQ(changed.peak(ComputeType::kFloat32), base.peak(ComputeType::kFloat32));
  EXPECT_EQ(changed.source.at("h2d_bytes_per_second"), "set by the user");
}

TEST(Profile, MistakesAreNamed) {
  EXPECT_THAT([] { profile("rtx9999"); }, ThrowsMessage<std::invalid_argument>(HasSubstr("rtx4090, rtx3060-12g")));
  Profile const base = profile("l20");
  EXPECT_THAT([&] { with_overrides(base, R"({"h2d": 1})"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("there is no figure 'h2d'")));
  EXPECT_THAT([&] { with_overrides(base, R"({"flops": {"float12": 1}})"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("'float12'")));
  EXPECT_THAT([&] { with_overrides(base, R"({"h2d_bytes_per_second": 0})"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("must be a positive number")));
  EXPECT_THAT([&] { with_overrides(base, "not json"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("expected a JSON object")));
  EXPECT_THAT([] { profile_from_json("mine", R"({"flops": {"float32": 1e12}})"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("profile 'mine' lacks")));
}

TEST(Profile, SurvivesTheRoundTripThroughJson) {
  Profile const card = profile("h200");
  Profile const copy = profile_from_json("h200", to_json(card));
  EXPECT_EQ(copy.flops, card.flops);
  EXPECT_EQ(copy.capacity_bytes, card.capacity_bytes);
  EXPECT_DOUBLE_EQ(copy.pin_seconds_per_byte, card.pin_seconds_per_byte);
  EXPECT_EQ(copy.source, card.source);
}

TEST(Profile, NamesOfArithmeticAreThoseOfPyTorch) {
  EXPECT_EQ(compute_type("bfloat16"), ComputeType::kBfloat16);
  EXPECT_EQ(compute_type("float8_e4m3fn"), ComputeType::kFloat8);
  EXPECT_EQ(compute_type("complex64"), std::nullopt);
  EXPECT_EQ(compute_type_name(ComputeType::kInt8), "int8");
}

}  // namespace
}  // namespace noria::sim

// Weights live in the middle of one large block: operators must touch, and declare, their own part of it only.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "sim/torch/simulated.h"

namespace noria::simtorch {
namespace {

constexpr std::size_t kArenaBytes = 4096;

class Arena : public testing::Test {
 protected:
  void SetUp() override {
    auto config = one_device();
    config.checker = sim::CheckerMode::kRecord;
    enable(std::move(config));
    block = c10::GetAllocator(kSimDevice)->allocate(kArenaBytes);
  }

  // A tensor of `count` floats at a byte offset of the arena, which owns nothing.
  at::Tensor weight(std::size_t offset, std::int64_t count) const {
    c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(count) * sizeof(float),
                         {static_cast<std::byte*>(block.get()) + offset, sim_device(0)}, nullptr, false);
    return at::empty({0}, on_device()).set_(std::move(storage), 0, {count}, {1});
  }

  c10::DataPtr block;
};

TEST_F(Arena, NeighboursOnTwoStreamsAreNoRace) {
  auto const first = weight(0, 128);
  auto const second = weight(512, 128);
  auto const side = runtime().create_stream(0);
  first.fill_(1.0);
  auto const before = exchange_stream(side);
  second.fill_(2.0);
  exchange_stream(before);
  EXPECT_TRUE(runtime().races().empty());
  runtime().synchronize_device(0);
  EXPECT_EQ(first.sum().item<float>(), 128.0F);
  EXPECT_EQ(second.sum().item<float>(), 256.0F);
}

TEST_F(Arena, AWeightWrittenOnAnotherStreamIsARaceOfItsOwnBytes) {
  auto const first = weight(0, 128);
  auto const second = weight(512, 128);
  auto const side = runtime().create_stream(0);
  auto const before = exchange_stream(side);
  second.fill_(2.0);
  exchange_stream(before);
  first.fill_(1.0);
  static_cast<void>(second + 1.0);
  auto const races = runtime().races();
  ASSERT_EQ(races.size(), 1U);
  EXPECT_EQ(races[0].begin, reinterpret_cast<std::uintptr_t>(block.get()) + 512);
  EXPECT_EQ(races[0].end - races[0].begin, 512U);
  EXPECT_EQ(races[0].first.op, "aten::fill_.Scalar");
  EXPECT_EQ(races[0].second.op, "aten::add.out");
}

TEST_F(Arena, AnOutOperandThatGrowsGetsMemoryOfItsOwn) {
  auto out = at::empty({0}, on_device());
  auto const source = weight(0, 128).fill_(3.0);
  at::add_out(out, source, source);
  EXPECT_EQ(out.sum().item<float>(), 768.0F);
  EXPECT_EQ(runtime().stats(0).allocated, kArenaBytes + 512);
}

}  // namespace
}  // namespace noria::simtorch

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <noria/bytes.h>

#include "sim/runtime/test_machine.h"

namespace noria::sim {
namespace {

using namespace noria::literals;
using ::testing::HasSubstr;

Config sized(Bytes capacity, bool caching = true) {
  Config sized = config();
  sized.devices[0].memory_bytes = capacity;
  sized.caching_allocator = caching;
  return sized;
}

TEST(Memory, BlocksAreAlignedPoisonedAndCounted) {
  Runtime runtime(config());
  DeviceBytes const small(runtime, 100);
  DeviceBytes const large(runtime, 3_MiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small.data()) % kBlockAlignment, 0U);
  EXPECT_EQ(small[0], kPoisonByte);
  EXPECT_EQ(large[3_MiB - 1], kPoisonByte);
  DeviceStats const stats = runtime.stats(0);
  EXPECT_EQ(stats.allocated, 512 + 3_MiB);
  EXPECT_EQ(stats.reserved, 2_MiB + 20_MiB);
  EXPECT_EQ(stats.allocations, 2U);
  EXPECT_EQ(stats.device_allocations, 2U);
  EXPECT_EQ(runtime.memory_info(0).total, 1_GiB);
  EXPECT_EQ(runtime.memory_info(0).free, 1_GiB - 22_MiB);
  EXPECT_EQ(runtime.allocate(0, {}), nullptr);
}

TEST(Memory, PeakStaysWhenBlocksGoAndCanBeReset) {
  Runtime runtime(config());
  {
    DeviceBytes const large(runtime, 30_MiB);
  }
  DeviceBytes const small(runtime, 1000);
  EXPECT_EQ(runtime.stats(0).allocated, 1024U);
  EXPECT_EQ(runtime.stats(0).peak_allocated, 30_MiB);
  runtime.reset_peak_stats(0);
  EXPECT_EQ(runtime.stats(0).peak_allocated, 1024U);
  EXPECT_EQ(runtime.stats(0).frees, 1U);
  runtime.reset_stats(0);
  EXPECT_EQ(runtime.stats(0).frees, 0U);
  EXPECT_EQ(runtime.stats(0).allocated, 1024U);
}

TEST(Memory, FreedBlockServesItsOwnStreamAtOnceAndNoOther) {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  void* const first = runtime.allocate(4000, {});
  runtime.free(first);
  DeviceBytes const other(runtime, 4000, side);
  EXPECT_NE(other.data(), first);
  DeviceBytes const again(runtime, 4000);
  EXPECT_EQ(again.data(), first);
}

TEST(Memory, SmallestFreeBlockThatFitsIsSplit) {
  Runtime runtime(config());
  void* const a = runtime.allocate(4096, {});
  DeviceBytes const fence(runtime, 512);
  void* const b = runtime.allocate(1024, {});
  DeviceBytes const fence_too(runtime, 512);
  runtime.free(a);
  runtime.free(b);
  DeviceBytes const fits_b(runtime, 900);
  EXPECT_EQ(fits_b.data(), b);
  DeviceBytes const first_of_a(runtime, 2000);
  DeviceBytes const second_of_a(runtime, 2000);
  EXPECT_EQ(first_of_a.data(), a);
  EXPECT_EQ(second_of_a.data(), static_cast<unsigned char*>(a) + 2048);
}

TEST(Memory, FreeNeighboursJoin) {
  Runtime runtime(config());
  void* const a = runtime.allocate(1024, {});
  void* const b = runtime.allocate(1024, {});
  void* const c = runtime.allocate(1024, {});
  DeviceBytes const fence(runtime, 512);
  runtime.free(a);
  runtime.free(c);
  runtime.free(b);
  DeviceBytes const all(runtime, 3072);
  EXPECT_EQ(all.data(), a);
  EXPECT_EQ(runtime.stats(0).device_allocations, 1U);
}

TEST(Memory, EmptyCacheGivesWholeSegmentsBack) {
  Runtime runtime(config());
  DeviceBytes const kept(runtime, 1000);
  {
    DeviceBytes const large(runtime, 100_MiB);
  }
  EXPECT_EQ(runtime.stats(0).reserved, 102_MiB);
  runtime.empty_cache(0);
  EXPECT_EQ(runtime.stats(0).reserved, 2_MiB);
  EXPECT_EQ(runtime.stats(0).device_frees, 1U);
  EXPECT_EQ(runtime.stats(0).peak_reserved, 102_MiB);
}

TEST(Memory, OutOfMemorySaysWhatWasAskedAndWhatIsLeft) {
  Runtime runtime(sized(64_MiB));
  DeviceBytes const held(runtime, 40_MiB);
  try {
    runtime.allocate(30_MiB, {});
    FAIL();
  } catch (SimOutOfMemory const& error) {
    EXPECT_EQ(error.figures().asked, 30_MiB);
    EXPECT_EQ(error.figures().total, 64_MiB);
    EXPECT_EQ(error.figures().free, 24_MiB);
    EXPECT_EQ(error.figures().allocated, 40_MiB);
    EXPECT_EQ(error.figures().reserved, 40_MiB);
    EXPECT_THAT(error.what(), HasSubstr("out of memory. Tried to allocate 30.0 MiB"));
  }
  EXPECT_EQ(runtime.stats(0).ooms, 1U);
  EXPECT_THROW(runtime.allocate(~Bytes{0}, {}), SimOutOfMemory);
  EXPECT_NO_THROW(DeviceBytes(runtime, 24_MiB));
}

TEST(Memory, CacheIsEmptiedBeforeAnAllocationFails) {
  Runtime runtime(sized(64_MiB));
  {
    DeviceBytes const cached(runtime, 40_MiB);
  }
  EXPECT_NO_THROW(DeviceBytes(runtime, 50_MiB));
  EXPECT_EQ(runtime.stats(0).allocation_retries, 1U);
}

TEST(Memory, AllocationWaitsForDeferredBlocksBeforeItFails) {
  Runtime runtime(sized(64_MiB));
  StreamRef const side = runtime.create_stream(0);
  void* const held = runtime.allocate(40_MiB, {});
  Interval const user = run(runtime, side, "user", {range(held, 100)}, {}, 1'000'000);
  runtime.record_stream(held, side);
  runtime.free(held);
  EXPECT_NO_THROW(DeviceBytes(runtime, 50_MiB));
  EXPECT_GE(runtime.host_clock(), user.end);
  EXPECT_EQ(runtime.stats(0).host_syncs, 1U);
}

TEST(Memory, EveryByteOfASmallDeviceCanBeUsed) {
  Runtime runtime(sized(3_MiB + 512));
  DeviceBytes const most(runtime, 3_MiB);
  DeviceBytes const rest(runtime, 512);
  EXPECT_EQ(runtime.memory_info(0).free, 0U);
  EXPECT_THROW(runtime.allocate(1, {}), SimOutOfMemory);
}

TEST(Memory, WithoutACacheFreeingWaitsForTheDevice) {
  Runtime runtime(sized(64_MiB, false));
  StreamRef const side = runtime.create_stream(0);
  Nanoseconds kernel_end = 0;
  {
    DeviceBytes const bytes(runtime, 1000);
    EXPECT_EQ(runtime.host_clock(), kAlloc);
    kernel_end = run(runtime, side, "k", {bytes.all()}, {}, 70000).end;
  }
  EXPECT_EQ(runtime.host_clock(), kernel_end + kSync + kAlloc);
  EXPECT_EQ(runtime.stats(0).reserved, 0U);
  DeviceBytes const again(runtime, 1000);
  EXPECT_EQ(runtime.stats(0).device_allocations, 2U);
  EXPECT_NO_THROW(run(runtime, {}, "new owner", {}, {again.all()}));
  EXPECT_THROW(runtime.allocate(64_MiB, {}), SimOutOfMemory);
}

TEST(Memory, LooksUpBlocksByAnyOfTheirBytes) {
  Runtime runtime(config(CheckerMode::kRaise, 2));
  StreamRef const stream{1, 0};
  DeviceBytes const bytes(runtime, 1000, stream);
  auto const block = runtime.find_block(bytes.data() + 999);
  ASSERT_TRUE(block);
  EXPECT_EQ(block->base, bytes.data());
  EXPECT_EQ(block->bytes, 1000U);
  EXPECT_EQ(block->device, 1);
  EXPECT_EQ(runtime.device_of(bytes.data()), 1);
  int local = 0;
  EXPECT_EQ(runtime.device_of(&local), std::nullopt);
  EXPECT_FALSE(runtime.find_block(&local));
}

TEST(Memory, AdoptedMemoryIsAccountedAndChecked) {
  Runtime runtime(sized(4_MiB));
  StreamRef const side = runtime.create_stream(0);
  std::vector<unsigned char> output(1_MiB, 5);
  runtime.adopt(output.data(), output.size(), {});
  EXPECT_EQ(output[0], 5);
  EXPECT_EQ(runtime.device_of(output.data() + 100), 0);
  EXPECT_EQ(runtime.stats(0).allocated, 1_MiB);
  EXPECT_EQ(runtime.memory_info(0).free, 3_MiB);
  EXPECT_THROW(runtime.allocate(3_MiB + 1, {}), SimOutOfMemory);
  run(runtime, {}, "write", {}, {range(output.data(), 100)});
  EXPECT_THROW(run(runtime, side, "read", {range(output.data(), 100)}, {}), SimRace);
  runtime.release_adopted(output.data());
  EXPECT_EQ(runtime.stats(0).allocated, 0U);
  EXPECT_EQ(runtime.device_of(output.data()), std::nullopt);
}

TEST(Memory, LargeFreshBlocksCostNoRealMemoryUntilWritten) {
  Runtime runtime(sized(2 * kHuge));
  DeviceBytes const huge(runtime, kHuge / 4);
  EXPECT_EQ(huge[0], kPoisonByte);
  EXPECT_EQ(huge[kHuge / 4 - 1], kPoisonByte);
}

TEST(Memory, ConfiguringAnewWaitsForMemoryToBeGone) {
  Runtime runtime(config());
  {
    DeviceBytes const alive(runtime, 1000);
    EXPECT_THROW(runtime.configure(config(CheckerMode::kRaise, 2)), Error);
    EXPECT_EQ(runtime.device_count(), 1);
  }
  runtime.configure(config(CheckerMode::kRaise, 2));
  EXPECT_EQ(runtime.device_count(), 2);
  EXPECT_EQ(runtime.host_clock(), 0);
}

TEST(Memory, ConfigurationMustMakeSense) {
  EXPECT_THROW(Runtime(Config{}), std::invalid_argument);
  Config three = config();
  three.copy_engines = 3;
  EXPECT_THROW(Runtime{three}, std::invalid_argument);
}

TEST(Pinned, BlocksAreRoundedUpAndCached) {
  Runtime runtime(config());
  void* const first = runtime.allocate_pinned(5000);
  EXPECT_TRUE(runtime.is_pinned(first));
  EXPECT_EQ(runtime.host_stats().pinned_allocated, 5000U);
  EXPECT_EQ(runtime.host_stats().pinned_booked, 8192U);
  runtime.free_pinned(first);
  EXPECT_FALSE(runtime.is_pinned(first));
  EXPECT_EQ(runtime.host_stats().pinned_booked, 8192U);
  PinnedBytes const again(runtime, 8000);
  EXPECT_EQ(again.data(), first);
  EXPECT_EQ(runtime.host_stats().pins, 1U);
}

TEST(Pinned, EmptyingTheCacheUnbooks) {
  Runtime runtime(config());
  {
    PinnedBytes const bytes(runtime, 5000);
  }
  runtime.empty_pinned_cache();
  EXPECT_EQ(runtime.host_stats().pinned_booked, 0U);
  EXPECT_EQ(runtime.host_stats().peak_pinned_booked, 8192U);
}

TEST(Pinned, RegisteredRangesAreBookedExactly) {
  Runtime runtime(config());
  std::vector<unsigned char> memory(5000);
  runtime.register_host(memory.data(), memory.size());
  EXPECT_EQ(runtime.host_stats().pinned_booked, 5000U);
  EXPECT_EQ(runtime.host_stats().registered, 5000U);
  EXPECT_THROW(runtime.register_host(memory.data() + 100, 10), std::invalid_argument);
  EXPECT_THROW(runtime.unregister_host(memory.data() + 100), std::invalid_argument);
  runtime.unregister_host(memory.data());
  EXPECT_EQ(runtime.host_stats().pinned_booked, 0U);
}

TEST(Pinned, LimitIsKeptByEmptyingTheCacheFirst) {
  Config limited = config();
  limited.pinned_limit_bytes = 16384;
  Runtime runtime(limited);
  {
    PinnedBytes const cached(runtime, 8192);
  }
  PinnedBytes const large(runtime, 16384);
  EXPECT_EQ(runtime.host_stats().pinned_booked, 16384U);
  EXPECT_THROW(runtime.allocate_pinned(1), SimPinFailure);
  EXPECT_EQ(runtime.host_stats().pin_failures, 1U);
}

TEST(Pinned, OffMeansUnsupported) {
  Config off = config();
  off.pinned_memory = false;
  Runtime runtime(off);
  std::vector<unsigned char> memory(5000);
  EXPECT_THROW(runtime.allocate_pinned(100), UnsupportedOperation);
  EXPECT_THROW(runtime.register_host(memory.data(), 100), UnsupportedOperation);
  EXPECT_FALSE(runtime.is_pinned(memory.data()));
}

}  // namespace
}  // namespace noria::sim

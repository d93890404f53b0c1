#include <gtest/gtest.h>
#include <noria/bytes.h>

#include "sim/runtime/test_machine.h"

namespace noria::sim {
namespace {

using namespace noria::literals;

Config dry() {
  Config dry = config();
  dry.dry = true;
  dry.devices[0].memory_bytes = 2 * kHuge;
  return dry;
}

TEST(Dry, LargeMemoryOfAnySizeIsAddressesOnly) {
  Runtime runtime(dry());
  DeviceBytes const device(runtime, kHuge);
  void* const pinned = runtime.allocate_pinned(kHuge / 2);
  void* const pageable = runtime.reserve_host(kHuge / 2);
  EXPECT_FALSE(runtime.is_real(device.data()));
  EXPECT_FALSE(runtime.is_real(pinned));
  EXPECT_FALSE(runtime.is_real(pageable));
  EXPECT_EQ(runtime.stats(0).allocated, kHuge);
  runtime.free_pinned(pinned);
  runtime.release_reserved_host(pageable);
}

TEST(Dry, PageLockingReservedMemoryMakesItNoMoreReal) {
  Runtime runtime(dry());
  void* const large = runtime.reserve_host(kHuge / 2);
  void* const small = runtime.reserve_host(1_MiB);
  runtime.register_host(large, kHuge / 2);
  runtime.register_host(small, 1_MiB);
  EXPECT_FALSE(runtime.is_real(large));
  EXPECT_TRUE(runtime.is_real(small));
  runtime.unregister_host(large);
  runtime.unregister_host(small);
  runtime.release_reserved_host(large);
  runtime.release_reserved_host(small);
}

TEST(Dry, SmallMemoryIsReal) {
  Runtime runtime(dry());
  DeviceBytes const device(runtime, 1_MiB);
  PinnedBytes const host(runtime, 1_MiB, 3);
  auto* const pageable = static_cast<unsigned char*>(runtime.reserve_host(1_MiB));
  EXPECT_TRUE(runtime.is_real(device.data()));
  EXPECT_TRUE(runtime.is_real(pageable));
  pageable[0] = 1;
  runtime.copy_async(device.data(), host.data(), 1_MiB, CopyKind::kHostToDevice, {});
  EXPECT_EQ(device[1_MiB - 1], 3);
  runtime.release_reserved_host(pageable);
}

TEST(Dry, CopiesOfWhatDoesNotExistCostAndAreCheckedButMoveNothing) {
  Runtime runtime(dry());
  StreamRef const side = runtime.create_stream(0);
  DeviceBytes const device(runtime, 1_GiB);
  void* const pinned = runtime.allocate_pinned(1_GiB);
  Interval const time = runtime.copy_async(device.data(), pinned, 1_GiB, CopyKind::kHostToDevice, side).time;
  EXPECT_EQ(time.end - time.begin, kLatency + static_cast<Nanoseconds>(1_GiB));
  EXPECT_THROW(run(runtime, {}, "use", {device.all()}, {}), SimRace);
  EXPECT_NO_THROW(run(runtime, side, "use", {device.all()}, {}));
  EXPECT_NO_THROW(runtime.poison(device.data(), 1_GiB, side));
  runtime.synchronize_stream(side);
  runtime.free_pinned(pinned);
}

}  // namespace
}  // namespace noria::sim

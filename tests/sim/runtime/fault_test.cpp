#include "sim/runtime/fault.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <noria/bytes.h>

#include "sim/runtime/test_machine.h"

namespace noria::sim {
namespace {

using namespace noria::literals;
using ::testing::HasSubstr;

constexpr Bytes kBytes = 1000;

Injection injection(FaultKind kind, std::uint64_t after = 1) {
  Injection injection;
  injection.kind = kind;
  injection.after = after;
  return injection;
}

TEST(Fault, NamesAreThoseOfTheInterface) {
  EXPECT_EQ(fault_kind("oom"), FaultKind::kOutOfMemory);
  EXPECT_EQ(fault_kind("copy_error"), FaultKind::kCopyError);
  EXPECT_EQ(fault_kind("slow_copy"), FaultKind::kSlowCopy);
  EXPECT_EQ(fault_kind("pin_failure"), FaultKind::kPinFailure);
  EXPECT_EQ(fault_kind("fire"), std::nullopt);
}

TEST(Fault, TheNthAllocationFailsAndTheNextWorks) {
  Runtime runtime(config());
  runtime.inject(injection(FaultKind::kOutOfMemory, 3));
  DeviceBytes const first(runtime, kBytes);
  DeviceBytes const second(runtime, kBytes);
  EXPECT_THROW(runtime.allocate(kBytes, {}), SimOutOfMemory);
  EXPECT_NO_THROW(DeviceBytes(runtime, kBytes));
}

TEST(Fault, AllocationsAboveALevelFailUntilCleared) {
  Runtime runtime(config());
  Injection above = injection(FaultKind::kOutOfMemory);
  above.above = 10_MiB;
  above.count = 0;
  runtime.inject(above);
  DeviceBytes const most(runtime, 10_MiB);
  EXPECT_THROW(runtime.allocate(1, {}), SimOutOfMemory);
  EXPECT_THROW(runtime.allocate(1, {}), SimOutOfMemory);
  runtime.clear_injections();
  EXPECT_NO_THROW(DeviceBytes(runtime, 1));
}

TEST(Fault, OnlyTheDeviceMeantFails) {
  Runtime runtime(config(CheckerMode::kRaise, 2));
  Injection second = injection(FaultKind::kOutOfMemory);
  second.device = 1;
  runtime.inject(second);
  EXPECT_NO_THROW(DeviceBytes(runtime, kBytes, {0, 0}));
  EXPECT_THROW(runtime.allocate(kBytes, {1, 0}), SimOutOfMemory);
}

TEST(Fault, CopyErrorSurfacesAtTheNextSynchronisationAndStays) {
  Runtime runtime(config());
  PinnedBytes const host(runtime, kBytes, 7);
  DeviceBytes const device(runtime, kBytes);
  runtime.inject(injection(FaultKind::kCopyError));
  EXPECT_NO_THROW(runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {}, "load"));
  EXPECT_NO_THROW(run(runtime, {}, "use", {device.all()}, {}));
  EXPECT_EQ(device[0], kPoisonByte) << "the bytes never arrived";
  try {
    runtime.synchronize_stream({});
    FAIL();
  } catch (SimDeviceError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("'load' of 1000 B"));
  }
  EXPECT_THROW(runtime.synchronize_device(0), SimDeviceError);
  runtime.clear_error(0);
  EXPECT_NO_THROW(runtime.synchronize_device(0));
}

TEST(Fault, CopyErrorThatClearsIsThrownOnce) {
  Runtime runtime(config());
  std::vector<unsigned char> host(kBytes, 7);
  DeviceBytes const device(runtime, kBytes);
  Injection once = injection(FaultKind::kCopyError);
  once.sticky = false;
  runtime.inject(once);
  EXPECT_THROW(runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {}), SimDeviceError)
      << "a pageable copy is a synchronisation";
  EXPECT_NO_THROW(runtime.synchronize_device(0));
  runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {});
  EXPECT_EQ(device[0], 7);
}

TEST(Fault, SlowCopyTakesLonger) {
  Runtime runtime(config());
  PinnedBytes const host(runtime, kBytes, 7);
  DeviceBytes const device(runtime, kBytes);
  Injection slow = injection(FaultKind::kSlowCopy, 2);
  slow.factor = 3;
  slow.extra = 10;
  runtime.inject(slow);
  auto const copy = [&] {
    Interval const time = runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {}).time;
    return time.end - time.begin;
  };
  EXPECT_EQ(copy(), kLatency + 1000);
  EXPECT_EQ(copy(), 3 * (kLatency + 1000) + 10);
  EXPECT_EQ(copy(), kLatency + 1000);
}

TEST(Fault, PinFailureStrikesAllocationAndRegistration) {
  Runtime runtime(config());
  Injection twice = injection(FaultKind::kPinFailure);
  twice.count = 2;
  runtime.inject(twice);
  std::vector<unsigned char> memory(kBytes);
  EXPECT_THROW(runtime.allocate_pinned(kBytes), SimPinFailure);
  EXPECT_THROW(runtime.register_host(memory.data(), kBytes), SimPinFailure);
  EXPECT_FALSE(runtime.is_pinned(memory.data()));
  runtime.register_host(memory.data(), kBytes);
  runtime.unregister_host(memory.data());
}

}  // namespace
}  // namespace noria::sim

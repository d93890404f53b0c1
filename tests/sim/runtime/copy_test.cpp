#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/runtime/test_machine.h"

namespace noria::sim {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kBytes = 1000;

TEST(Copy, BytesLandWhenTheHostHasSeenTheCopyComplete) {
  Runtime runtime(config());
  PinnedBytes const host(runtime, kBytes, 7);
  DeviceBytes const device(runtime, kBytes);
  runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {});
  EXPECT_EQ(device[0], kPoisonByte);
  EXPECT_EQ(device[kBytes - 1], kPoisonByte);
  runtime.synchronize_stream({});
  EXPECT_EQ(device[0], 7);
  EXPECT_EQ(device[kBytes - 1], 7);
}

TEST(Copy, BytesLandWhenTheSameStreamReadsThem) {
  Runtime runtime(config());
  PinnedBytes const host(runtime, kBytes, 7);
  DeviceBytes const device(runtime, kBytes);
  runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {});
  run(runtime, {}, "use", {device.part(10, 1)}, {});
  EXPECT_EQ(device[0], 7);
}

TEST(Copy, BytesDoNotLandForWorkThatDoesNotTouchThem) {
  Runtime runtime(config());
  PinnedBytes const host(runtime, kBytes, 7);
  DeviceBytes const device(runtime, kBytes);
  DeviceBytes const other(runtime, kBytes);
  runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {});
  run(runtime, {}, "elsewhere", {}, {other.all()});
  EXPECT_EQ(device[0], kPoisonByte);
}

TEST(Copy, AnotherStreamSeesTheBytesOnceItHasWaited) {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  PinnedBytes const host(runtime, kBytes, 7);
  DeviceBytes const device(runtime, kBytes);
  EventId const ready = runtime.create_event(0);
  runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, side);
  runtime.record_event(ready, side);
  runtime.wait_event(ready, {});
  EXPECT_EQ(device[0], kPoisonByte) << "a wait alone moves nothing";
  run(runtime, {}, "use", {device.all()}, {});
  EXPECT_EQ(device[0], 7);
}

TEST(Copy, AnotherStreamThatDidNotWaitReadsPoison) {
  Runtime runtime(config(CheckerMode::kRecord));
  StreamRef const side = runtime.create_stream(0);
  PinnedBytes const host(runtime, kBytes, 7);
  DeviceBytes const device(runtime, kBytes);
  runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, side, "load weights");
  run(runtime, {}, "matmul", {device.all()}, {});
  EXPECT_EQ(device[0], kPoisonByte);
  ASSERT_EQ(runtime.races().size(), 1U);
  Race const race = runtime.races()[0];
  EXPECT_EQ(race.first.op, "load weights");
  EXPECT_EQ(race.first.stream, side.id);
  EXPECT_TRUE(race.first.write);
  EXPECT_EQ(race.second.op, "matmul");
  EXPECT_EQ(race.second.stream, 0);
  EXPECT_FALSE(race.second.write);
  EXPECT_EQ(race.device, 0);
  EXPECT_EQ(race.end - race.begin, kBytes);
  EXPECT_THAT(race.missing_wait, HasSubstr("Stream 0 of device 0 must wait for an event recorded on stream 1"));
}

TEST(Copy, HostReadsPoisonFromADeviceToHostCopyItDidNotWaitFor) {
  Runtime runtime(config(CheckerMode::kRecord));
  PinnedBytes const host(runtime, kBytes, 1);
  DeviceBytes const device(runtime, kBytes);
  run(runtime, {}, "fill", {}, {device.all()});
  std::memset(device.data(), 9, kBytes);
  runtime.copy_async(host.data(), device.data(), kBytes, CopyKind::kDeviceToHost, {}, "fetch");
  runtime.host_read(host.data(), kBytes);
  EXPECT_EQ(host[0], kPoisonByte);
  ASSERT_EQ(runtime.races().size(), 1U);
  EXPECT_EQ(runtime.races()[0].first.op, "fetch");
  EXPECT_EQ(runtime.races()[0].second.stream, kHostStream);
  EXPECT_EQ(runtime.races()[0].device, -1);
  EXPECT_THAT(runtime.races()[0].missing_wait, HasSubstr("The host must synchronize"));
  runtime.synchronize_device(0);
  runtime.host_read(host.data(), kBytes);
  EXPECT_EQ(host[0], 9);
  EXPECT_EQ(runtime.races().size(), 1U);
}

TEST(Copy, DeviceToHostTakesTheBytesFromBeforeALaterKernelOfItsStream) {
  Runtime runtime(config());
  PinnedBytes const host(runtime, kBytes);
  DeviceBytes const device(runtime, kBytes);
  run(runtime, {}, "fill", {}, {device.all()});
  std::memset(device.data(), 9, kBytes);
  runtime.copy_async(host.data(), device.data(), kBytes, CopyKind::kDeviceToHost, {});
  run(runtime, {}, "overwrite", {}, {device.all()});
  std::memset(device.data(), 4, kBytes);
  runtime.synchronize_stream({});
  EXPECT_EQ(host[0], 9);
}

TEST(Copy, UnorderedOverwriteOfItsSourceShowsInTheValues) {
  Runtime runtime(config(CheckerMode::kRecord));
  StreamRef const side = runtime.create_stream(0);
  PinnedBytes const host(runtime, kBytes);
  DeviceBytes const device(runtime, kBytes, side);
  run(runtime, side, "fill", {}, {device.all()});
  std::memset(device.data(), 9, kBytes);
  runtime.copy_async(host.data(), device.data(), kBytes, CopyKind::kDeviceToHost, side, "write back");
  runtime.synchronize_device(0);
  runtime.copy_async(host.data(), device.data(), kBytes, CopyKind::kDeviceToHost, side, "write back");
  run(runtime, {}, "refill", {}, {device.all()});
  std::memset(device.data(), 4, kBytes);
  runtime.synchronize_device(0);
  EXPECT_EQ(host[0], 4);
  ASSERT_EQ(runtime.races().size(), 1U);
  EXPECT_FALSE(runtime.races()[0].first.write);
  EXPECT_TRUE(runtime.races()[0].second.write);
}

TEST(Copy, FreedSourceIsPoisonedAfterItsCopyWasSaved) {
  Runtime runtime(config());
  PinnedBytes const host(runtime, kBytes);
  void* const device = runtime.allocate(kBytes, {});
  run(runtime, {}, "fill", {}, {range(device, kBytes)});
  std::memset(device, 9, kBytes);
  runtime.copy_async(host.data(), device, kBytes, CopyKind::kDeviceToHost, {});
  runtime.free(device);
  EXPECT_EQ(*static_cast<unsigned char*>(device), kPoisonByte);
  runtime.synchronize_stream({});
  EXPECT_EQ(host[0], 9);
}

TEST(Copy, ChainOfCopiesKeepsItsOrder) {
  Runtime runtime(config());
  StreamRef const in = runtime.create_stream(0);
  StreamRef const out = runtime.create_stream(0);
  PinnedBytes const source(runtime, kBytes, 5);
  PinnedBytes const target(runtime, kBytes, 0);
  DeviceBytes const device(runtime, kBytes);
  EventId const ready = runtime.create_event(0);
  runtime.copy_async(device.data(), source.data(), kBytes, CopyKind::kHostToDevice, in);
  runtime.record_event(ready, in);
  runtime.wait_event(ready, out);
  runtime.copy_async(target.data(), device.data(), kBytes, CopyKind::kDeviceToHost, out);
  runtime.synchronize_stream(out);
  EXPECT_EQ(target[0], 5);
}

TEST(Copy, SourceChangedByHostCodeBeforeCompletionIsARace) {
  Runtime runtime(config(CheckerMode::kRecord));
  PinnedBytes const host(runtime, kBytes, 7);
  DeviceBytes const device(runtime, kBytes);
  runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {}, "load");
  host[500] = 8;
  runtime.synchronize_stream({});
  ASSERT_EQ(runtime.races().size(), 1U);
  EXPECT_EQ(runtime.races()[0].first.op, "load");
  EXPECT_EQ(runtime.races()[0].second.op, "host write");
  EXPECT_EQ(runtime.races()[0].second.stream, kHostStream);
}

TEST(Copy, SourceChangedBehindTheCheckerRaisesAtTheNextSynchronisation) {
  Runtime runtime(config());
  PinnedBytes const host(runtime, kBytes, 7);
  DeviceBytes const device(runtime, kBytes);
  runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {});
  host[0] = 8;
  EXPECT_THROW(runtime.synchronize_stream({}), SimRace);
  EXPECT_NO_THROW(runtime.synchronize_stream({})) << "thrown once";
}

TEST(Copy, DestinationWrittenByHostCodeBeforeCompletionIsARace) {
  Runtime runtime(config(CheckerMode::kRecord));
  PinnedBytes const host(runtime, kBytes);
  DeviceBytes const device(runtime, kBytes);
  run(runtime, {}, "fill", {}, {device.all()});
  std::memset(device.data(), 9, kBytes);
  runtime.copy_async(host.data(), device.data(), kBytes, CopyKind::kDeviceToHost, {}, "fetch");
  host[kBytes - 1] = 1;
  runtime.synchronize_stream({});
  EXPECT_EQ(host[kBytes - 1], 9);
  ASSERT_EQ(runtime.races().size(), 1U);
  EXPECT_EQ(runtime.races()[0].first.op, "fetch");
  EXPECT_EQ(runtime.races()[0].second.op, "host write");
}

TEST(Copy, AnnouncedHostWriteToASourceInFlightIsARace) {
  Runtime runtime(config());
  PinnedBytes const host(runtime, kBytes, 7);
  DeviceBytes const device(runtime, kBytes);
  runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {});
  EXPECT_THROW(runtime.host_write(host.data(), 1), SimRace);
  EXPECT_NO_THROW(runtime.host_read(host.data(), kBytes)) << "two readers do not race";
  runtime.synchronize_stream({});
  EXPECT_NO_THROW(runtime.host_write(host.data(), 1));
}

TEST(Copy, HostWriteAfterAKernelThatUsedTheCopyIsStillARaceUntilObserved) {
  Runtime runtime(config());
  PinnedBytes const host(runtime, kBytes, 7);
  DeviceBytes const device(runtime, kBytes);
  runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {});
  run(runtime, {}, "use", {device.all()}, {});
  EXPECT_THROW(runtime.host_write(host.data(), 1), SimRace);
}

TEST(Copy, FreeingAPinnedSourceInFlightIsARaceThrownByTheNextOperation) {
  Runtime runtime(config());
  DeviceBytes const device(runtime, kBytes);
  {
    PinnedBytes const host(runtime, kBytes, 7);
    runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {}, "load");
  }
  ASSERT_EQ(runtime.races().size(), 1U);
  EXPECT_EQ(runtime.races()[0].second.op, "free of pinned memory");
  EXPECT_THROW(run(runtime, {}, "next", {}, {}), SimRace);
  runtime.synchronize_stream({});
  EXPECT_EQ(device[0], 7) << "the bytes were saved before the block went";
}

TEST(Copy, FreedPinnedBlockWaitsForItsRecordedUse) {
  Runtime runtime(config());
  DeviceBytes const device(runtime, kBytes);
  void* first = nullptr;
  {
    PinnedBytes const host(runtime, kBytes, 7);
    first = host.data();
    runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {});
    runtime.record_pinned_use(host.data(), {});
  }
  EXPECT_TRUE(runtime.races().empty());
  PinnedBytes const second(runtime, kBytes, 1);
  EXPECT_NE(second.data(), first) << "the copy has not passed";
  runtime.advance_host(1'000'000);
  PinnedBytes const third(runtime, kBytes, 2);
  EXPECT_EQ(third.data(), first);
  runtime.synchronize_stream({});
  EXPECT_EQ(device[0], 7);
}

TEST(Copy, PageableMemoryIsCopiedAtOnceAndBlocksTheHost) {
  Runtime runtime(config());
  std::vector<unsigned char> host(kBytes, 3);
  DeviceBytes const device(runtime, kBytes);
  Nanoseconds const before = runtime.host_clock();
  CopyResult const in = runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {});
  EXPECT_TRUE(in.pageable);
  EXPECT_EQ(device[0], 3);
  EXPECT_EQ(runtime.host_clock(), before + kLaunch + kLatency + 4000 + kSync);
  host.assign(kBytes, 0);
  EXPECT_TRUE(runtime.copy_async(host.data(), device.data(), kBytes, CopyKind::kDeviceToHost, {}).pageable);
  EXPECT_EQ(host[0], 3);
  EXPECT_EQ(runtime.stats(0).pageable_copies, 2U);
  EXPECT_EQ(runtime.stats(0).host_syncs, 2U);
}

TEST(Copy, RegisteredMemoryIsPinned) {
  Runtime runtime(config());
  std::vector<unsigned char> host(kBytes, 3);
  DeviceBytes const device(runtime, kBytes);
  runtime.register_host(host.data(), kBytes);
  EXPECT_TRUE(runtime.is_pinned(host.data() + 999));
  EXPECT_FALSE(runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {}).pageable);
  runtime.synchronize_stream({});
  runtime.unregister_host(host.data());
  EXPECT_TRUE(runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {}).pageable);
}

TEST(Copy, WithinADeviceRunsAsAKernel) {
  Runtime runtime(config());
  DeviceBytes const from(runtime, kBytes);
  DeviceBytes const to(runtime, kBytes);
  run(runtime, {}, "fill", {}, {from.all()});
  std::memset(from.data(), 6, kBytes);
  CopyResult const result = runtime.copy_async(to.data(), from.data(), kBytes, CopyKind::kDeviceToDevice, {});
  EXPECT_EQ(to[0], 6);
  EXPECT_EQ(result.time.end - result.time.begin, kFloor + 2 * 1000 / 10);
  EXPECT_EQ(runtime.stats(0).copies_d2d, 1U);
}

TEST(Copy, BetweenDevicesLandsLateAndTakesTheLink) {
  Runtime runtime(config(CheckerMode::kRaise, 2));
  StreamRef const second{1, 0};
  DeviceBytes const from(runtime, kBytes);
  DeviceBytes const to(runtime, kBytes, second);
  run(runtime, {}, "fill", {}, {from.all()});
  std::memset(from.data(), 6, kBytes);
  CopyResult const result = runtime.copy_async(to.data(), from.data(), kBytes, CopyKind::kDeviceToDevice, {});
  EXPECT_EQ(result.time.end - result.time.begin, kLatency + 500);
  EXPECT_EQ(to[0], kPoisonByte);
  EXPECT_THROW(run(runtime, second, "use", {to.all()}, {}), SimRace);
  EventId const done = runtime.create_event(0);
  runtime.record_event(done, {});
  runtime.wait_event(done, second);
  run(runtime, second, "use", {to.all()}, {});
  EXPECT_EQ(to[0], 6);
}

TEST(Copy, WithoutPoisonBytesMoveWhenIssued) {
  Config off = config(CheckerMode::kOff);
  off.poison = false;
  Runtime runtime(off);
  PinnedBytes const host(runtime, kBytes, 7);
  DeviceBytes const device(runtime, kBytes);
  runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, {});
  EXPECT_EQ(device[0], 7);
}

TEST(Copy, WithTheCheckerOffPoisonStillShowsAMissingWait) {
  Runtime runtime(config(CheckerMode::kOff));
  StreamRef const side = runtime.create_stream(0);
  PinnedBytes const host(runtime, kBytes, 7);
  DeviceBytes const device(runtime, kBytes);
  runtime.copy_async(device.data(), host.data(), kBytes, CopyKind::kHostToDevice, side);
  run(runtime, {}, "use", {device.all()}, {});
  EXPECT_EQ(device[0], kPoisonByte);
  run(runtime, side, "use", {device.all()}, {});
  EXPECT_EQ(device[0], 7);
  EXPECT_TRUE(runtime.races().empty());
}

TEST(Copy, RefusesSidesThatAreNotWhatTheCallerSays) {
  Runtime runtime(config());
  std::vector<unsigned char> host(kBytes);
  DeviceBytes const device(runtime, kBytes);
  EXPECT_THROW(runtime.copy_async(host.data(), device.data(), kBytes, CopyKind::kHostToDevice, {}),
               std::invalid_argument);
  EXPECT_THROW(runtime.copy_async(host.data(), host.data(), kBytes, CopyKind::kHostToDevice, {}),
               std::invalid_argument);
}

}  // namespace
}  // namespace noria::sim

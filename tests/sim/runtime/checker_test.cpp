#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/runtime/test_machine.h"

namespace noria::sim {
namespace {

using ::testing::HasSubstr;

TEST(Checker, UnorderedWritersRaiseBeforeTheSecondRuns) {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  DeviceBytes const bytes(runtime, 100);
  run(runtime, {}, "first", {}, {bytes.all()});
  Nanoseconds const before = runtime.host_clock();
  try {
    run(runtime, side, "second", {}, {bytes.part(40, 60)});
    FAIL() << "the race was missed";
  } catch (SimRace const& error) {
    EXPECT_EQ(error.race().first.op, "first");
    EXPECT_EQ(error.race().second.op, "second");
    EXPECT_THAT(error.what(), HasSubstr("race on 60 bytes"));
  }
  EXPECT_EQ(runtime.host_clock(), before);
  EXPECT_EQ(runtime.stats(0).kernels, 1U);
}

TEST(Checker, DeviceIsUsableAfterARace) {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  DeviceBytes const bytes(runtime, 100);
  run(runtime, {}, "first", {}, {bytes.all()});
  EXPECT_THROW(run(runtime, side, "second", {}, {bytes.all()}), SimRace);
  runtime.synchronize_device(0);
  EXPECT_NO_THROW(run(runtime, side, "second", {}, {bytes.all()}));
}

TEST(Checker, RangesOfOneBlockAreApart) {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  DeviceBytes const arena(runtime, 4096);
  run(runtime, {}, "slot 0", {}, {arena.part(0, 1024)});
  EXPECT_NO_THROW(run(runtime, side, "slot 1", {}, {arena.part(1024, 1024)}));
  EXPECT_THROW(run(runtime, side, "slot 0", {arena.part(1023, 1)}, {}), SimRace);
}

TEST(Checker, InPlaceKernelDoesNotRaceWithItself) {
  Runtime runtime(config());
  DeviceBytes const bytes(runtime, 100);
  EXPECT_NO_THROW(run(runtime, {}, "add_", {bytes.all()}, {bytes.all()}));
}

TEST(Checker, ReadersOnTwoStreamsAreFineUntilAWriterComes) {
  Runtime runtime(config());
  StreamRef const a = runtime.create_stream(0);
  StreamRef const b = runtime.create_stream(0);
  DeviceBytes const bytes(runtime, 100);
  run(runtime, {}, "write", {}, {bytes.all()});
  runtime.synchronize_device(0);
  run(runtime, a, "read a", {bytes.all()}, {});
  run(runtime, b, "read b", {bytes.all()}, {});
  EventId const event = runtime.create_event(0);
  runtime.record_event(event, a);
  runtime.wait_event(event, {});
  try {
    run(runtime, {}, "write again", {}, {bytes.all()});
    FAIL() << "the reader on b is not ordered before the writer";
  } catch (SimRace const& error) {
    EXPECT_EQ(error.race().first.op, "read b");
  }
}

TEST(Checker, OutputsThatAppearWhenTheKernelEndsAreItsWrites) {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  DeviceBytes const output(runtime, 100);
  KernelScope const scope = runtime.begin_kernel({}, "functional", {}, {});
  Range const written = output.all();
  runtime.end_kernel(scope, {}, {&written, 1});
  EXPECT_THROW(run(runtime, side, "use", {output.all()}, {}), SimRace);
}

TEST(Checker, UseAfterFreeIsFound) {
  Runtime runtime(config());
  void* const stale = runtime.allocate(100, {});
  runtime.free(stale);
  try {
    run(runtime, {}, "late reader", {range(stale, 100)}, {});
    FAIL();
  } catch (SimMisuse const& error) {
    EXPECT_EQ(error.finding().kind, FindingKind::kUseAfterFree);
    EXPECT_EQ(error.finding().op, "late reader");
  }
  EXPECT_EQ(*static_cast<unsigned char*>(stale), kPoisonByte);
}

TEST(Checker, UseAfterFreeIsFoundAlsoWhenTheMemoryWentBackToTheDevice) {
  Runtime runtime(config(CheckerMode::kRecord));
  void* const stale = runtime.allocate(100, {});
  runtime.free(stale);
  runtime.empty_cache(0);
  run(runtime, {}, "late writer", {}, {range(stale, 100)});
  ASSERT_EQ(runtime.findings().size(), 1U);
  EXPECT_EQ(runtime.findings()[0].kind, FindingKind::kUseAfterFree);
  EXPECT_EQ(*static_cast<unsigned char*>(stale), kPoisonByte);
}

TEST(Checker, CopyOfAFreedPinnedBlockIsFound) {
  Runtime runtime(config(CheckerMode::kRecord));
  DeviceBytes const device(runtime, 100);
  void* const stale = runtime.allocate_pinned(100);
  runtime.free_pinned(stale);
  runtime.copy_async(device.data(), stale, 100, CopyKind::kHostToDevice, {});
  ASSERT_EQ(runtime.findings().size(), 1U);
  EXPECT_EQ(runtime.findings()[0].kind, FindingKind::kUseAfterFree);
  EXPECT_EQ(runtime.findings()[0].device, -1);
}

TEST(Checker, DoubleFreeIsFoundAndThrownByTheNextOperation) {
  Runtime runtime(config());
  DeviceBytes const neighbour(runtime, 100);
  void* const pointer = runtime.allocate(100, {});
  runtime.free(pointer);
  runtime.free(pointer);
  ASSERT_EQ(runtime.findings().size(), 1U);
  EXPECT_EQ(runtime.findings()[0].kind, FindingKind::kDoubleFree);
  EXPECT_THROW(runtime.throw_deferred(), SimMisuse);
  EXPECT_NO_THROW(runtime.throw_deferred());
  EXPECT_EQ(runtime.stats(0).allocated, 512U);
}

TEST(Checker, DoubleFreeOfPinnedMemoryIsFound) {
  Runtime runtime(config(CheckerMode::kRecord));
  void* const pointer = runtime.allocate_pinned(100);
  runtime.free_pinned(pointer);
  runtime.free_pinned(pointer);
  ASSERT_EQ(runtime.findings().size(), 1U);
  EXPECT_EQ(runtime.findings()[0].kind, FindingKind::kDoubleFree);
  EXPECT_EQ(runtime.host_stats().pinned_allocated, 0U);
}

TEST(Checker, FreeOfAPointerInsideABlockIsFound) {
  Runtime runtime(config(CheckerMode::kRecord));
  DeviceBytes const bytes(runtime, 1000);
  runtime.free(bytes.data() + 512);
  ASSERT_EQ(runtime.findings().size(), 1U);
  EXPECT_EQ(runtime.findings()[0].kind, FindingKind::kInvalidFree);
}

TEST(Checker, RangePastTheEndOfItsBlockIsFound) {
  Runtime runtime(config(CheckerMode::kRecord));
  DeviceBytes const bytes(runtime, 100);
  run(runtime, {}, "k", {bytes.part(50, 51)}, {});
  ASSERT_EQ(runtime.findings().size(), 1U);
  EXPECT_EQ(runtime.findings()[0].kind, FindingKind::kOutOfBounds);
}

TEST(Checker, AddressesNeverHandedOutAreFound) {
  Runtime runtime(config(CheckerMode::kRecord));
  DeviceBytes const bytes(runtime, 100);
  run(runtime, {}, "k", {range(bytes.data() + (Bytes{64} << 20U), 100)}, {});
  ASSERT_EQ(runtime.findings().size(), 1U);
  EXPECT_EQ(runtime.findings()[0].kind, FindingKind::kUnknownMemory);
}

TEST(Checker, ReusedBlockKeepsTheHistoryOfItsBytes) {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  void* const first = runtime.allocate(1000, {});
  run(runtime, {}, "fill", {}, {range(first, 1000)});
  EventId const event = runtime.create_event(0);
  runtime.record_event(event, {});
  runtime.wait_event(event, side);
  run(runtime, side, "slow reader", {range(first, 1000)}, {});
  runtime.free(first);  // without record_stream
  DeviceBytes const second(runtime, 1000);
  ASSERT_EQ(second.data(), first);
  try {
    run(runtime, {}, "new owner", {}, {second.all()});
    FAIL() << "the side stream may still read these bytes";
  } catch (SimRace const& error) {
    EXPECT_EQ(error.race().first.op, "slow reader");
    EXPECT_EQ(error.race().second.op, "new owner");
  }
}

TEST(Checker, FreedBlockIsFineWhenItsStreamHasWaitedBeforeReuse) {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  void* const first = runtime.allocate(1000, {});
  run(runtime, {}, "fill", {}, {range(first, 1000)});
  EventId const event = runtime.create_event(0);
  runtime.record_event(event, {});
  runtime.wait_event(event, side);
  run(runtime, side, "reader", {range(first, 1000)}, {});
  runtime.free(first);
  runtime.record_event(event, side);
  runtime.wait_event(event, {});
  DeviceBytes const second(runtime, 1000);
  EXPECT_NO_THROW(run(runtime, {}, "new owner", {}, {second.all()}));
}

TEST(Checker, NewTensorOnAnotherStreamRacesWithTheOldOwnersWork) {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  void* const first = runtime.allocate(1000, {});
  run(runtime, {}, "old owner", {}, {range(first, 1000)});
  runtime.free(first);
  DeviceBytes const second(runtime, 1000);
  ASSERT_EQ(second.data(), first);
  EXPECT_THROW(run(runtime, side, "new owner elsewhere", {}, {second.all()}), SimRace);
}

TEST(Checker, RecordStreamHoldsTheBlockUntilThatStreamHasPassed) {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  void* const first = runtime.allocate(1000, {});
  run(runtime, {}, "fill", {}, {range(first, 1000)});
  EventId const event = runtime.create_event(0);
  runtime.record_event(event, {});
  runtime.wait_event(event, side);
  Interval const reader = run(runtime, side, "reader", {range(first, 1000)}, {}, 80000);
  runtime.record_stream(first, side);
  runtime.free(first);
  DeviceBytes const second(runtime, 1000);
  EXPECT_NE(second.data(), first);
  runtime.advance_host(reader.end);
  DeviceBytes const third(runtime, 1000);
  ASSERT_EQ(third.data(), first);
  EXPECT_NO_THROW(run(runtime, {}, "new owner", {}, {third.all()}));
}

TEST(Checker, CopyFromAFreedBlockThatIsWaitedForLaterStillGetsItsBytes) {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  PinnedBytes const host(runtime, 1000);
  void* const first = runtime.allocate(1000, {});
  run(runtime, {}, "fill", {}, {range(first, 1000)});
  std::memset(first, 5, 1000);
  EventId const event = runtime.create_event(0);
  runtime.record_event(event, {});
  runtime.wait_event(event, side);
  runtime.copy_async(host.data(), first, 1000, CopyKind::kDeviceToHost, side);
  runtime.free(first);
  runtime.record_event(event, side);
  runtime.wait_event(event, {});
  DeviceBytes const second(runtime, 1000);
  ASSERT_EQ(second.data(), first);
  run(runtime, {}, "new owner", {}, {second.all()});
  std::memset(second.data(), 6, 1000);
  runtime.synchronize_device(0);
  EXPECT_EQ(host[0], 5);
  EXPECT_EQ(host[999], 5);
}

TEST(Checker, RecordModeListsEveryRaceAndGoesOn) {
  Runtime runtime(config(CheckerMode::kRecord));
  StreamRef const side = runtime.create_stream(0);
  DeviceBytes const a(runtime, 100);
  DeviceBytes const b(runtime, 100);
  run(runtime, {}, "first", {}, {a.all(), b.all()});
  run(runtime, side, "second", {}, {a.all(), b.all()});
  EXPECT_EQ(runtime.races().size(), 2U);
  EXPECT_EQ(runtime.stats(0).kernels, 2U);
  runtime.clear_reports();
  EXPECT_TRUE(runtime.races().empty());
}

TEST(Checker, OffTracksNothingAndCanBeSwitchedOn) {
  Runtime runtime(config(CheckerMode::kOff));
  StreamRef const side = runtime.create_stream(0);
  DeviceBytes const bytes(runtime, 100);
  run(runtime, {}, "first", {}, {bytes.all()});
  run(runtime, side, "second", {}, {bytes.all()});
  runtime.set_checker(CheckerMode::kRaise);
  EXPECT_NO_THROW(run(runtime, {}, "starts afresh", {}, {bytes.all()}));
  EXPECT_THROW(run(runtime, side, "then checks", {}, {bytes.all()}), SimRace);
}

TEST(Checker, UserPoisonIsAWriteThatEarlierCopiesPrecede) {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  PinnedBytes const host(runtime, 1000);
  DeviceBytes const arena(runtime, 1000);
  run(runtime, {}, "fill", {}, {arena.all()});
  std::memset(arena.data(), 5, 1000);
  runtime.copy_async(host.data(), arena.data(), 1000, CopyKind::kDeviceToHost, {});
  runtime.poison(arena.data(), 1000, {});
  EXPECT_EQ(arena[0], kPoisonByte);
  EXPECT_THROW(run(runtime, side, "use", {arena.all()}, {}), SimRace);
  runtime.synchronize_device(0);
  EXPECT_EQ(host[0], 5) << "the copy was ordered before the poison";
}

TEST(Checker, HostMemoryOutsideItsKnowledgeIsIgnored) {
  Runtime runtime(config());
  std::vector<unsigned char> pageable(100);
  EXPECT_NO_THROW(run(runtime, {}, "k", {range(pageable.data(), 100)}, {range(nullptr, 0)}));
  EXPECT_NO_THROW(runtime.host_write(pageable.data(), 100));
}

TEST(Checker, ModesAndKindsHaveNames) {
  EXPECT_EQ(checker_mode("raise"), CheckerMode::kRaise);
  EXPECT_EQ(checker_mode("record"), CheckerMode::kRecord);
  EXPECT_EQ(checker_mode("off"), CheckerMode::kOff);
  EXPECT_EQ(checker_mode("on"), std::nullopt);
  EXPECT_EQ(finding_name(FindingKind::kDoubleFree), "double-free");
}

}  // namespace
}  // namespace noria::sim

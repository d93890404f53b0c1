#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/runtime/test_machine.h"

namespace noria::sim {
namespace {

using ::testing::HasSubstr;

TEST(Stream, IdsCountUpPerDeviceFromTheDefaultStream) {
  Runtime runtime(config(CheckerMode::kRaise, 2));
  EXPECT_TRUE(runtime.has_stream({0, 0}));
  EXPECT_TRUE(runtime.has_stream({1, 0}));
  EXPECT_EQ(runtime.create_stream(0, -1), (StreamRef{0, 1}));
  EXPECT_EQ(runtime.create_stream(1), (StreamRef{1, 1}));
  EXPECT_EQ(runtime.create_stream(0), (StreamRef{0, 2}));
  EXPECT_EQ(runtime.stream_priority({0, 1}), -1);
  EXPECT_EQ(runtime.stream_count(0), 3);
  EXPECT_FALSE(runtime.has_stream({0, 3}));
  EXPECT_THROW(run(runtime, {0, 3}, "k", {}, {}), std::invalid_argument);
  EXPECT_THROW(run(runtime, {2, 0}, "k", {}, {}), std::invalid_argument);
}

TEST(Stream, QueryIsTrueOnlyWhenHostTimeHasReachedItsWork) {
  Runtime runtime(config());
  EXPECT_TRUE(runtime.query_stream({}));
  Interval const kernel = run(runtime, {}, "k", {}, {}, 5000);
  EXPECT_FALSE(runtime.query_stream({}));
  runtime.advance_host(kernel.end - runtime.host_clock() - kEvent);
  EXPECT_TRUE(runtime.query_stream({}));
}

TEST(Stream, PollingComesToAnEndEvenWhenEventsAreFree) {
  Config free_events = config();
  free_events.devices[0].profile.event_seconds = 0;
  Runtime runtime(free_events);
  run(runtime, {}, "k", {}, {}, 5000);
  int polls = 1;
  while (!runtime.query_stream({})) {
    ++polls;
  }
  EXPECT_EQ(polls, 5000);
}

TEST(Stream, QueryThatSaysYesOrdersTheHostAfterTheWork) {
  Runtime runtime(config());
  PinnedBytes const host(runtime, 100, 1);
  DeviceBytes const device(runtime, 100);
  runtime.copy_async(device.data(), host.data(), 100, CopyKind::kHostToDevice, {});
  EXPECT_FALSE(runtime.query_stream({}));
  EXPECT_EQ(device[0], kPoisonByte);
  while (!runtime.query_stream({})) {
  }
  EXPECT_EQ(device[0], 1);
  EXPECT_NO_THROW(runtime.host_write(host.data(), 100));
}

TEST(Stream, StreamsOffMeansNoneCanBeMade) {
  Config off = config();
  off.streams = false;
  Runtime runtime(off);
  EXPECT_THROW(runtime.create_stream(0), UnsupportedOperation);
  EXPECT_NO_THROW(run(runtime, {}, "k", {}, {}));
}

TEST(Event, WaitDelaysTheStreamInVirtualTime) {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  Interval const slow = run(runtime, side, "slow", {}, {}, 90000);
  EventId const event = runtime.create_event(0);
  runtime.record_event(event, side);
  runtime.wait_event(event, {});
  EXPECT_EQ(run(runtime, {}, "after", {}, {}).begin, slow.end);
  EXPECT_EQ(runtime.stats(0).event_waits, 1U);
  EXPECT_EQ(runtime.stats(0).event_records, 1U);
}

TEST(Event, RecordingAgainDoesNotMoveEarlierWaiters) {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  DeviceBytes const early(runtime, 100, side);
  DeviceBytes const late(runtime, 100, side);
  EventId const event = runtime.create_event(0);
  Interval const first = run(runtime, side, "first", {}, {early.all()}, 5000);
  runtime.record_event(event, side);
  runtime.wait_event(event, {});
  run(runtime, side, "second", {}, {late.all()}, 90000);
  runtime.record_event(event, side);
  EXPECT_EQ(runtime.event_generation(event), 2U);
  EXPECT_EQ(run(runtime, {}, "reads first", {early.all()}, {}).begin, first.end);
  EXPECT_THROW(run(runtime, {}, "reads second", {late.all()}, {}), SimRace);
}

TEST(Event, RecordingOnAnotherStreamForgetsTheFirst) {
  Runtime runtime(config());
  StreamRef const a = runtime.create_stream(0);
  StreamRef const b = runtime.create_stream(0);
  DeviceBytes const bytes(runtime, 100, a);
  EventId const event = runtime.create_event(0);
  run(runtime, a, "write", {}, {bytes.all()});
  runtime.record_event(event, a);
  runtime.record_event(event, b);
  runtime.wait_event(event, {});
  EXPECT_THROW(run(runtime, {}, "read", {bytes.all()}, {}), SimRace);
}

TEST(Event, NeverRecordedCountsAsDoneAndIsReportedOnce) {
  Runtime runtime(config());
  EventId const event = runtime.create_event(0);
  EXPECT_TRUE(runtime.query_event(event));
  EXPECT_NO_THROW(runtime.synchronize_event(event));
  runtime.wait_event(event, {});
  runtime.wait_event(event, {});
  ASSERT_EQ(runtime.findings().size(), 1U);
  EXPECT_EQ(runtime.findings()[0].kind, FindingKind::kEventNeverRecorded);
  EXPECT_THAT(runtime.findings()[0].text, HasSubstr("never recorded"));
}

TEST(Event, SynchronizeOrdersOnlyWhatWasBeforeTheRecord) {
  Runtime runtime(config());
  PinnedBytes const a(runtime, 100);
  PinnedBytes const b(runtime, 100);
  DeviceBytes const device(runtime, 200);
  EventId const event = runtime.create_event(0);
  runtime.copy_async(device.data(), a.data(), 100, CopyKind::kHostToDevice, {});
  runtime.record_event(event, {});
  runtime.copy_async(device.data() + 100, b.data(), 100, CopyKind::kHostToDevice, {});
  runtime.synchronize_event(event);
  EXPECT_NO_THROW(runtime.host_write(a.data(), 100));
  EXPECT_THROW(runtime.host_write(b.data(), 100), SimRace);
  runtime.synchronize_device(0);
}

TEST(Event, OrderIsTransitive) {
  Runtime runtime(config());
  StreamRef const a = runtime.create_stream(0);
  StreamRef const b = runtime.create_stream(0);
  DeviceBytes const bytes(runtime, 100, a);
  EventId const first = runtime.create_event(0);
  EventId const second = runtime.create_event(0);
  run(runtime, a, "write", {}, {bytes.all()});
  runtime.record_event(first, a);
  runtime.wait_event(first, b);
  runtime.record_event(second, b);
  runtime.wait_event(second, {});
  EXPECT_NO_THROW(run(runtime, {}, "read", {bytes.all()}, {}));
}

TEST(Event, ElapsedIsVirtualTimeBetweenTimingEvents) {
  Runtime runtime(config());
  EventId const begin = runtime.create_event(0, true);
  EventId const end = runtime.create_event(0, true);
  EventId const plain = runtime.create_event(0);
  runtime.record_event(begin, {});
  runtime.record_event(plain, {});
  Interval const kernel = run(runtime, {}, "k", {}, {}, 5000);
  EXPECT_THROW(static_cast<void>(runtime.elapsed(begin, end)), Error) << "end is not recorded";
  runtime.record_event(end, {});
  EXPECT_THROW(static_cast<void>(runtime.elapsed(begin, end)), Error) << "end is not complete";
  runtime.synchronize_event(end);
  EXPECT_EQ(runtime.elapsed(begin, end), kernel.end - kEvent);
  EXPECT_EQ(runtime.elapsed(end, begin), kEvent - kernel.end);
  EXPECT_THROW(static_cast<void>(runtime.elapsed(plain, end)), Error) << "no timing";
}

TEST(Event, DestroyedOnesAreUnknown) {
  Runtime runtime(config());
  EventId const event = runtime.create_event(0);
  runtime.destroy_event(event);
  runtime.destroy_event(event);
  EXPECT_THROW(runtime.record_event(event, {}), std::invalid_argument);
  EXPECT_NE(runtime.create_event(0), event);
}

TEST(Event, OrdersStreamsOfDifferentDevices) {
  Runtime runtime(config(CheckerMode::kRaise, 2));
  StreamRef const second{1, 0};
  PinnedBytes const staging(runtime, 100, 3);
  DeviceBytes const from(runtime, 100);
  DeviceBytes const to(runtime, 100, second);
  run(runtime, {}, "fill", {}, {from.all()});
  runtime.copy_async(staging.data(), from.data(), 100, CopyKind::kDeviceToHost, {});
  EXPECT_THROW(runtime.copy_async(to.data(), staging.data(), 100, CopyKind::kHostToDevice, second), SimRace);
  EventId const event = runtime.create_event(0);
  runtime.record_event(event, {});
  runtime.wait_event(event, second);
  EXPECT_NO_THROW(runtime.copy_async(to.data(), staging.data(), 100, CopyKind::kHostToDevice, second));
  runtime.synchronize_device(1);
}

}  // namespace
}  // namespace noria::sim

#include "sim/runtime/clock.h"

#include <gtest/gtest.h>

#include "sim/runtime/test_machine.h"

namespace noria::sim {
namespace {

TEST(Engine, DoesOneThingAtATime) {
  Engine engine;
  EXPECT_EQ(engine.book(0, 10), 0);
  EXPECT_EQ(engine.book(0, 10), 10);
  EXPECT_EQ(engine.book(50, 10), 50);
}

TEST(Engine, FillsTheGapBeforeAJobThatWaitsForItsStream) {
  Engine engine;
  engine.book(100, 10);
  EXPECT_EQ(engine.book(0, 50), 0);
  EXPECT_EQ(engine.book(0, 60), 110) << "does not fit before 100";
  EXPECT_EQ(engine.book(0, 50), 50);
}

TEST(Engine, ForgetsThePast) {
  Engine engine;
  engine.book(0, 10);
  engine.book(20, 10);
  engine.forget_before(15);
  EXPECT_EQ(engine.book(15, 10), 30);
}

TEST(VirtualTime, KernelStartsWhenBothHostAndStreamAreThere) {
  Runtime runtime(config());
  Interval const first = run(runtime, {}, "a", {}, {}, 5000);
  EXPECT_EQ(first.begin, kLaunch);
  EXPECT_EQ(first.end, kLaunch + 5000);
  Interval const second = run(runtime, {}, "b", {}, {}, 10);
  EXPECT_EQ(second.begin, first.end);
  EXPECT_EQ(runtime.host_clock(), 2 * kLaunch);
  EXPECT_EQ(runtime.device_clock(0), first.end + 10);
}

TEST(VirtualTime, KernelCostsItsComputeOrItsMemoryWhicheverIsMore) {
  Runtime runtime(config());
  auto const cost = [&runtime](KernelCost const& cost) {
    Interval const time = runtime.launch({}, "k", {}, {}, cost);
    return time.end - time.begin;
  };
  EXPECT_EQ(cost({4e6, ComputeType::kFloat32, 100, -1}), kFloor + 4000);
  EXPECT_EQ(cost({4e6, ComputeType::kFloat16, 100, -1}), kFloor + 1000);
  EXPECT_EQ(cost({4e6, ComputeType::kFloat16, 50000, -1}), kFloor + 5000);
  EXPECT_EQ(cost({4e6, ComputeType::kFloat16, 50000, 77}), 77);
}

TEST(VirtualTime, CopyCostsLatencyAndLink) {
  Runtime runtime(config());
  PinnedBytes const host(runtime, 1000);
  DeviceBytes const device(runtime, 1000);
  Interval const in = runtime.copy_async(device.data(), host.data(), 1000, CopyKind::kHostToDevice, {}).time;
  EXPECT_EQ(in.end - in.begin, kLatency + 1000);
  Interval const out = runtime.copy_async(host.data(), device.data(), 1000, CopyKind::kDeviceToHost, {}).time;
  EXPECT_EQ(out.end - out.begin, kLatency + 2000);
  EXPECT_EQ(out.begin, in.end) << "same stream";
}

class Directions : public ::testing::TestWithParam<int> {};

TEST_P(Directions, OverlapOnlyWithAnEngineEach) {
  Config two_streams = config();
  two_streams.copy_engines = GetParam();
  Runtime runtime(two_streams);
  StreamRef const other = runtime.create_stream(0);
  PinnedBytes const host(runtime, 100000);
  PinnedBytes const target(runtime, 100000);
  DeviceBytes const device(runtime, 100000);
  DeviceBytes const source(runtime, 100000, other);
  run(runtime, other, "fill", {}, {source.all()}, 1);
  Interval const in = runtime.copy_async(device.data(), host.data(), 100000, CopyKind::kHostToDevice, {}).time;
  Interval const out = runtime.copy_async(target.data(), source.data(), 100000, CopyKind::kDeviceToHost, other).time;
  if (GetParam() == 2) {
    EXPECT_EQ(out.begin, in.begin + kLaunch);
  } else {
    EXPECT_EQ(out.begin, in.end);
  }
  runtime.synchronize_device(0);
}
INSTANTIATE_TEST_SUITE_P(Engines, Directions, ::testing::Values(1, 2));

TEST(VirtualTime, TwoCopiesOfOneDirectionShareTheLink) {
  Runtime runtime(config());
  StreamRef const other = runtime.create_stream(0);
  PinnedBytes const host(runtime, 2000);
  DeviceBytes const a(runtime, 1000);
  DeviceBytes const b(runtime, 1000, other);
  Interval const first = runtime.copy_async(a.data(), host.data(), 1000, CopyKind::kHostToDevice, {}).time;
  Interval const second = runtime.copy_async(b.data(), host.data(), 1000, CopyKind::kHostToDevice, other).time;
  EXPECT_EQ(second.begin, first.end);
}

TEST(VirtualTime, HostSyncCostsTheWaitAndItsPrice) {
  Runtime runtime(config());
  Interval const kernel = run(runtime, {}, "k", {}, {}, 5000);
  runtime.synchronize_stream({});
  EXPECT_EQ(runtime.host_clock(), kernel.end + kSync);
  runtime.synchronize_device(0);
  EXPECT_EQ(runtime.host_clock(), kernel.end + 2 * kSync);
  EXPECT_EQ(runtime.stats(0).host_syncs, 2U);
  EXPECT_EQ(runtime.stats(0).host_wait, 5000);
}

TEST(VirtualTime, AllocationCostsOnlyWhenTheCacheMisses) {
  Runtime runtime(config());
  {
    DeviceBytes const first(runtime, 1000);
  }
  EXPECT_EQ(runtime.host_clock(), kAlloc);
  {
    DeviceBytes const again(runtime, 1000);
  }
  EXPECT_EQ(runtime.host_clock(), kAlloc);
}

TEST(VirtualTime, PinningCostsPerByteOnce) {
  Runtime runtime(config());
  {
    PinnedBytes const first(runtime, 10000);
  }
  EXPECT_EQ(runtime.host_clock(), 1638) << "16384 bytes at 0.1 ns";
  {
    PinnedBytes const again(runtime, 9000);
  }
  EXPECT_EQ(runtime.host_clock(), 1638);
}

TEST(VirtualTime, HostTimeIsAddedAndNeverTaken) {
  Runtime runtime(config());
  runtime.advance_host(1234);
  EXPECT_EQ(runtime.host_clock(), 1234);
  EXPECT_THROW(runtime.advance_host(-1), std::invalid_argument);
}

TEST(VirtualTime, ResetStartsAtZeroWithWorkDone) {
  Runtime runtime(config());
  PinnedBytes const host(runtime, 1000, 4);
  DeviceBytes const device(runtime, 1000);
  runtime.copy_async(device.data(), host.data(), 1000, CopyKind::kHostToDevice, {});
  runtime.reset_clocks();
  EXPECT_EQ(runtime.host_clock(), 0);
  EXPECT_EQ(runtime.device_clock(0), 0);
  EXPECT_EQ(device[0], 4);
}

Nanoseconds busy_program() {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  PinnedBytes const host(runtime, 123457);
  for (int i = 0; i < 20; ++i) {
    DeviceBytes const device(runtime, 123457, side);
    EventId const event = runtime.create_event(0);
    runtime.copy_async(device.data(), host.data(), 123457, CopyKind::kHostToDevice, side);
    runtime.record_event(event, side);
    runtime.wait_event(event, {});
    KernelCost cost;
    cost.flops = 1e5 * i / 3.0;
    runtime.launch({}, "k", {}, {}, cost);
    runtime.query_event(event);
  }
  runtime.synchronize_device(0);
  return runtime.host_clock();
}

TEST(VirtualTime, TwoRunsGiveTheSameNanosecond) { EXPECT_EQ(busy_program(), busy_program()); }

}  // namespace
}  // namespace noria::sim

#include "sim/runtime/timeline.h"

#include <gtest/gtest.h>

#include "sim/runtime/test_machine.h"

namespace noria::sim {
namespace {

TEST(Timeline, ListsKernelsCopiesAndSyncsWithTheirTimes) {
  Runtime runtime(config());
  PinnedBytes const host(runtime, 1000);
  DeviceBytes const device(runtime, 1000);
  run(runtime, {}, "before", {}, {});
  runtime.record_timeline(true);
  Interval const copy = runtime.copy_async(device.data(), host.data(), 1000, CopyKind::kHostToDevice, {}, "load").time;
  Interval const kernel = run(runtime, {}, "matmul", {device.all()}, {});
  runtime.synchronize_stream({});
  auto const spans = runtime.timeline();
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[0].name, "load");
  EXPECT_EQ(spans[0].kind, SpanKind::kCopyH2D);
  EXPECT_EQ(spans[0].engine, 0);
  EXPECT_EQ(spans[0].bytes, 1000U);
  EXPECT_EQ(spans[0].begin, copy.begin);
  EXPECT_EQ(spans[1].name, "matmul");
  EXPECT_EQ(spans[1].end, kernel.end);
  EXPECT_EQ(spans[2].kind, SpanKind::kHostSync);
  EXPECT_EQ(spans[2].stream, kHostStream);
  EXPECT_EQ(spans[2].end, runtime.host_clock());
  runtime.clear_timeline();
  EXPECT_TRUE(runtime.timeline().empty());
}

TEST(Timeline, NamesOperationsAlsoWithTheCheckerOff) {
  Runtime runtime(config(CheckerMode::kOff));
  runtime.record_timeline(true);
  run(runtime, {}, "matmul", {}, {});
  EXPECT_EQ(runtime.timeline()[0].name, "matmul");
  EXPECT_EQ(span_kind_name(runtime.timeline()[0].kind), "kernel");
}

}  // namespace
}  // namespace noria::sim

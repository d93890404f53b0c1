#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "sim/runtime/test_machine.h"

namespace noria::sim {
namespace {

TEST(Threads, EachWithItsOwnStreamDoNotDisturbEachOther) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 200;
  Runtime runtime(config());
  std::vector<StreamRef> streams;
  streams.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    streams.push_back(runtime.create_stream(0));
  }
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      StreamRef const stream = streams[static_cast<std::size_t>(i)];
      PinnedBytes const in(runtime, 1000, static_cast<unsigned char>(i));
      PinnedBytes const out(runtime, 1000);
      for (int round = 0; round < kRounds; ++round) {
        DeviceBytes const device(runtime, 1000, stream);
        runtime.copy_async(device.data(), in.data(), 1000, CopyKind::kHostToDevice, stream);
        run(runtime, stream, "use", {device.all()}, {});
        runtime.copy_async(out.data(), device.data(), 1000, CopyKind::kDeviceToHost, stream);
        runtime.synchronize_stream(stream);
        wrong += out[999] == i ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(runtime.races().empty());
  EXPECT_EQ(runtime.stats(0).kernels, static_cast<std::uint64_t>(kThreads * kRounds));
  EXPECT_EQ(runtime.stats(0).allocated, 0U);
}

TEST(Threads, OneThreadMayUseWhatAnotherHasWaitedFor) {
  Runtime runtime(config());
  StreamRef const side = runtime.create_stream(0);
  PinnedBytes const host(runtime, 1000, 3);
  DeviceBytes const device(runtime, 1000);
  std::thread([&] {
    runtime.copy_async(device.data(), host.data(), 1000, CopyKind::kHostToDevice, side);
    runtime.synchronize_stream(side);
  }).join();
  EXPECT_NO_THROW(run(runtime, {}, "use", {device.all()}, {}));
  EXPECT_EQ(device[0], 3);
}

TEST(Process, RuntimeIsOneAndConfiguredExplicitly) {
  EXPECT_EQ(Runtime::process_if_configured(), nullptr);
  EXPECT_THROW(Runtime::process(), Error);
  Runtime& runtime = Runtime::configure_process(config());
  EXPECT_EQ(&Runtime::process(), &runtime);
  EXPECT_EQ(&Runtime::configure_process(config(CheckerMode::kOff, 3)), &runtime);
  EXPECT_EQ(runtime.device_count(), 3);
}

}  // namespace
}  // namespace noria::sim

// What the engine uses: the DeviceBackend of a simulated device, straight on the runtime.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <noria/device_backend.h>
#include <noria/error.h>

#include <numeric>

#include "sim/torch/simulated.h"

namespace noria::simtorch {
namespace {

DeviceBackend& backend() { return DeviceBackend::get(sim_device(0)); }

TEST(SimDeviceBackend, CapabilitiesFollowTheConfigurationOfTheLastEnable) {
  enable(one_device());
  EXPECT_TRUE(backend().capabilities().async_copies);
  auto poor = one_device();
  poor.streams = false;
  poor.pinned_memory = false;
  enable(std::move(poor));
  EXPECT_FALSE(backend().capabilities().streams);
  EXPECT_FALSE(backend().capabilities().async_copies);
  EXPECT_EQ(backend().why_not("streams"), "the simulator was enabled with streams=False");
  EXPECT_THROW(static_cast<void>(backend().new_stream()), UnsupportedOperation);
  EXPECT_THROW(static_cast<void>(backend().allocate_pinned(1)), UnsupportedOperation);
}

TEST(SimDeviceBackend, AskingForCapabilitiesMovesNoClock) {
  enable(one_device());
  static_cast<void>(backend().capabilities());
  EXPECT_EQ(runtime().host_clock(), 0);
  EXPECT_EQ(runtime().stats(0).allocations, 0U);
}

TEST(SimDeviceBackend, PinnedBlocksAreExact) {
  enable(one_device());
  auto const block = backend().allocate_pinned(5000);
  EXPECT_EQ(block.size(), 5000U);
  EXPECT_EQ(runtime().host_stats().registered, 5000U);
  EXPECT_TRUE(backend().is_pinned(block.data() + 4999));
}

TEST(SimDeviceBackend, RawCopiesArriveInStreamOrder) {
  enable(one_device());
  auto const host = backend().allocate_pinned(4096);
  auto const floats = std::span(reinterpret_cast<float*>(host.data()), 1024);
  std::iota(floats.begin(), floats.end(), 0.0F);
  auto const device = at::empty({1024}, on_device());
  auto const side = backend().new_stream();
  auto ready = backend().new_event();
  // The memory was made on the default stream.
  auto made = backend().new_event();
  made.record(backend().default_stream());
  made.block(side);
  backend().copy_to_device(device.data_ptr(), host.data(), 4096, side);
  ready.record(side);
  ready.block(backend().current_stream());
  EXPECT_EQ((device + 1.0).sum().item<float>(), 1024.0F * 1025.0F / 2.0F);
  EXPECT_TRUE(runtime().races().empty());
  EXPECT_EQ(runtime().stats(0).bytes_h2d, 4096U);
}

TEST(SimDeviceBackend, FillWritesEveryByte) {
  enable(one_device());
  auto const device = at::zeros({4}, on_device());
  backend().fill(device.data_ptr(), 0xFF, 16, backend().current_stream());
  EXPECT_TRUE(device.isnan().all().item<bool>());
}

TEST(SimDeviceBackend, OutOfMemoryIsRecognised) {
  enable(one_device());
  try {
    static_cast<void>(backend().allocate(Bytes{1} << 40U));
    FAIL() << "a tebibyte was allocated";
  } catch (std::exception const& error) {
    EXPECT_TRUE(backend().is_out_of_memory(error)) << error.what();
  }
}

TEST(SimDeviceBackend, ADryRunPinsAddressesOnly) {
  enable(one_device(true));
  auto const block = backend().allocate_pinned(Bytes{1} << 36U);
  EXPECT_EQ(runtime().host_stats().registered, Bytes{1} << 36U);
}

}  // namespace
}  // namespace noria::simtorch

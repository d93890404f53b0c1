// What the contract cannot say of every device: order between streams, indices, errors, out of memory.
#include "device/generic_backend.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <noria/error.h>

#include <cstring>

#include "support/stub_device.h"

namespace noria {
namespace {

using ::testing::HasSubstr;

class StubBackend : public ::testing::Test {
 protected:
  void SetUp() override { stub::install("stub"); }
  static c10::Device stub_device(c10::DeviceIndex index) { return {c10::kPrivateUse1, index}; }
};

TEST_F(StubBackend, ACopyFromPinnedMemoryWaitsForItsStreamOnly) {
  GenericBackend backend(stub_device(0));
  auto const copies = backend.new_stream(0);
  auto block = backend.allocate_pinned(64);
  std::memset(block.data(), 5, 64);
  auto const memory = backend.allocate(64);
  std::memset(memory.get(), 0, 64);
  backend.copy_to_device(memory.get(), block.data(), 64, copies);
  EXPECT_EQ(stub::pending(copies), 1);
  EXPECT_EQ(static_cast<char const*>(memory.get())[0], 0);
  backend.synchronize(copies);
  EXPECT_EQ(static_cast<char const*>(memory.get())[63], 5);
  EXPECT_EQ(stub::pending(copies), 0);
}

TEST_F(StubBackend, ABlockedStreamRunsAfterTheEvent) {
  GenericBackend backend(stub_device(0));
  auto const first = backend.new_stream(0);
  auto const second = backend.new_stream(0);
  int value = 0;
  stub::enqueue_write(first, &value, 1);
  auto event = backend.new_event(false);
  event.record(first);
  event.block(second);
  stub::enqueue_write(second, &value, 2);
  EXPECT_FALSE(event.query());
  backend.synchronize(second);
  EXPECT_TRUE(event.query());
  EXPECT_EQ(value, 2);
}

TEST_F(StubBackend, SynchronizeWaitsForEveryStreamOfThisIndexAndNoOther) {
  GenericBackend here(stub_device(1));
  GenericBackend there(stub_device(0));
  auto const ours = here.new_stream(0);
  auto const theirs = there.new_stream(0);
  int a = 0;
  int b = 0;
  stub::enqueue_write(ours, &a, 1);
  stub::enqueue_write(theirs, &b, 1);
  here.synchronize();
  EXPECT_EQ(a, 1);
  EXPECT_EQ(b, 0);
  there.synchronize();
}

TEST_F(StubBackend, MemoryComesFromTheBackendsIndexNotTheCurrentOne) {
  GenericBackend backend(stub_device(1));
  c10::DeviceGuard const elsewhere(stub_device(0));
  auto const before = stub::allocated(0);
  auto const memory = backend.allocate(4096);
  EXPECT_EQ(memory.device(), stub_device(1));
  EXPECT_EQ(stub::allocated(0), before);
  EXPECT_EQ(stub::allocated(1), 4096U);
}

TEST_F(StubBackend, TheCallersDeviceAndStreamsAreAsBeforeWhenACallThrows) {
  GenericBackend backend(stub_device(1));
  stub::settings().capacity = 1024;
  c10::DeviceGuard const elsewhere(stub_device(0));
  auto const stream = backend.new_stream(0);
  auto const before = backend.current_stream();
  EXPECT_THROW((void)backend.allocate(4096), c10::OutOfMemoryError);
  EXPECT_THROW((void)backend.allocate_pinned(4096), Error);
  EXPECT_EQ(stub::current_device(), 0);
  auto const memory = backend.allocate(64);
  char host[64] = {};
  backend.copy_to_device(memory.get(), host, 64, stream);
  EXPECT_EQ(stub::current_device(), 0);
  EXPECT_EQ(backend.current_stream(), before);
}

TEST_F(StubBackend, OddAddressesAreAlignedWithoutLosingTheBlock) {
  stub::settings().misalign = 64;
  GenericBackend backend(stub_device(0));
  auto const before = stub::allocated(0);
  {
    auto const memory = backend.allocate(1000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % 512, 0U);
    std::memset(memory.get(), 1, 1000);
  }
  EXPECT_EQ(stub::allocated(0), before);
}

TEST_F(StubBackend, CapabilitiesAreProbedOnce) {
  GenericBackend backend(stub_device(0));
  EXPECT_TRUE(backend.capabilities().pinned_memory);
  stub::settings().pin = false;
  EXPECT_TRUE(backend.capabilities().pinned_memory);
  EXPECT_FALSE(GenericBackend(stub_device(0)).capabilities().pinned_memory);
}

TEST_F(StubBackend, APinThatDoesNothingIsNotACapability) {
  stub::settings().pin_is_real = false;
  GenericBackend backend(stub_device(0));
  EXPECT_FALSE(backend.capabilities().pinned_memory);
  EXPECT_FALSE(backend.capabilities().async_copies);
  EXPECT_THAT(backend.why_not("pinned_memory"), HasSubstr("not page-locked"));
}

TEST_F(StubBackend, WithoutADefaultStreamTheCurrentOneStandsIn) {
  stub::settings().default_stream = false;
  GenericBackend backend(stub_device(0));
  EXPECT_TRUE(backend.capabilities().streams);
  EXPECT_EQ(backend.default_stream(), backend.current_stream());
}

TEST_F(StubBackend, TimeIsTheDevicesOwn) {
  GenericBackend backend(stub_device(0));
  auto first = backend.new_event(true);
  auto second = backend.new_event(true);
  first.record(backend.current_stream());
  second.record(backend.current_stream());
  second.synchronize();
  EXPECT_DOUBLE_EQ(first.elapsed_seconds(second), 0.25);
}

TEST_F(StubBackend, AnIndexOutOfRangeSaysWhatIsThere) {
  try {
    GenericBackend const backend(stub_device(5));
    FAIL() << "no error";
  } catch (std::invalid_argument const& error) {
    EXPECT_STREQ(error.what(), "device 'stub:5' cannot be used: there are 2 stub devices, stub:0 to stub:1");
  }
}

TEST_F(StubBackend, ADeviceThatIsNotHereSaysWhatIs) {
  stub::settings().devices = 1;
  try {
    (void)DeviceBackend::get(c10::Device(c10::kXPU, 0));
    FAIL() << "no error";
  } catch (std::invalid_argument const& error) {
    EXPECT_STREQ(error.what(), "device 'xpu:0' cannot be used: PyTorch sees no xpu device here. Usable: stub, cpu");
  }
}

TEST_F(StubBackend, ADeviceThatPlugsInLaterIsFound) {
  stub::settings().devices = 0;
  EXPECT_THROW((void)DeviceBackend::get(stub_device(0)), std::invalid_argument);
  EXPECT_THAT(DeviceBackend::usable_types(), ::testing::ElementsAre(c10::kCPU));
  stub::settings().devices = 2;
  EXPECT_EQ(DeviceBackend::get(stub_device(0)).device(), stub_device(0));
  EXPECT_THAT(DeviceBackend::usable_types(), ::testing::ElementsAre(c10::kPrivateUse1, c10::kCPU));
}

TEST_F(StubBackend, WithoutAnIndexTheCurrentDeviceIsMeant) {
  c10::DeviceGuard const here(stub_device(1));
  EXPECT_EQ(DeviceBackend::get(c10::Device(c10::kPrivateUse1)).device(), stub_device(1));
}

TEST_F(StubBackend, GetKeepsOneBackendPerIndexUntilAnotherFactoryIsRegistered) {
  auto& first = DeviceBackend::get(stub_device(0));
  EXPECT_EQ(&first, &DeviceBackend::get(stub_device(0)));
  EXPECT_NE(&first, &DeviceBackend::get(stub_device(1)));
  DeviceBackend::register_backend(c10::kPrivateUse1,
                                  [](c10::Device device) { return std::make_unique<GenericBackend>(device); });
  EXPECT_NE(&first, &DeviceBackend::get(stub_device(0)));
  EXPECT_EQ(first.device(), stub_device(0));
}

TEST_F(StubBackend, OutOfMemoryIsKnownByTypeByTextAndWhenNested) {
  GenericBackend backend(stub_device(0));
  stub::settings().capacity = 1024;
  try {
    (void)backend.allocate(4096);
    FAIL() << "no error";
  } catch (std::exception const& error) {
    EXPECT_TRUE(backend.is_out_of_memory(error));
  }
  EXPECT_TRUE(backend.is_out_of_memory(std::runtime_error("STUB out of memory. Tried to allocate 3 GiB")));
  EXPECT_FALSE(backend.is_out_of_memory(std::runtime_error("NPU out of memory. Tried to allocate 3 GiB")));
  try {
    try {
      throw std::runtime_error("STUB out of memory");
    } catch (...) {
      std::throw_with_nested(std::runtime_error("block 3 failed"));
    }
  } catch (std::exception const& error) {
    EXPECT_TRUE(backend.is_out_of_memory(error));
  }
}

TEST_F(StubBackend, EmptyCacheReachesTheAllocator) {
  GenericBackend backend(stub_device(0));
  auto const before = stub::emptied_caches();
  backend.empty_cache();
  EXPECT_EQ(stub::emptied_caches(), before + 1);
}

TEST_F(StubBackend, PinnedBlocksMoveAndAreFreedOnce) {
  GenericBackend backend(stub_device(0));
  auto const before = stub::pinned_blocks();
  {
    auto first = backend.allocate_pinned(100);
    auto const* const address = first.data();
    PinnedBlock second = std::move(first);
    EXPECT_EQ(second.data(), address);
    second = backend.allocate_pinned(200);
    EXPECT_EQ(stub::pinned_blocks(), before + 1);
  }
  EXPECT_EQ(stub::pinned_blocks(), before);
}

}  // namespace
}  // namespace noria

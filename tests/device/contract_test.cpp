// One contract over every kind of device that C++ can see: cpu, meta, and the stub with and without what real devices
// lack. What differs between them is only what their capabilities say.
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <noria/device_backend.h>
#include <noria/error.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "device/builtin_backends.h"
#include "device/generic_backend.h"
#include "support/stub_device.h"

namespace noria {
namespace {

using ::testing::HasSubstr;

struct Kind {
  std::string name;
  c10::Device device;
  std::function<void(stub::Settings&)> set = [](stub::Settings&) {};
};

std::vector<Kind> kinds() {
  c10::Device const stub1(c10::kPrivateUse1, 1);
  return {
      {"cpu", c10::Device(c10::kCPU)},
      {"meta", c10::Device(c10::kMeta)},
      {"stub_with_everything", stub1},
      {"stub_without_streams", stub1, [](auto& s) { s.streams = false; }},
      {"stub_without_default_stream", stub1, [](auto& s) { s.default_stream = false; }},
      {"stub_with_a_stream_pool_only", stub1, [](auto& s) { s.stream_pool_only = true; }},
      {"stub_without_events", stub1, [](auto& s) { s.events = false; }},
      {"stub_without_timing", stub1, [](auto& s) { s.timing = false; }},
      {"stub_without_device_synchronize", stub1, [](auto& s) { s.synchronize_device = s.streams = false; }},
      {"stub_that_cannot_pin", stub1, [](auto& s) { s.pin = false; }},
      {"stub_whose_pin_does_nothing", stub1, [](auto& s) { s.pin_is_real = false; }},
      {"stub_without_statistics", stub1, [](auto& s) { s.device_allocator = s.memory_info = false; }},
      {"stub_without_generator", stub1, [](auto& s) { s.generator = false; }},
      {"stub_with_odd_addresses", stub1, [](auto& s) { s.misalign = 64; }},
  };
}

class BackendContract : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    stub::install("stub");
    GetParam().set(stub::settings());
    auto const device = GetParam().device;
    auto const factories = builtin_factories();
    auto const factory = factories.find(device.type());
    backend_ = (factory != factories.end() ? factory->second : generic_factory())(device);
  }
  [[nodiscard]] bool has(bool Capabilities::* field) const { return backend_->capabilities().*field; }
  [[nodiscard]] bool has_bytes() const { return backend_->device().type() != c10::kMeta; }

  std::unique_ptr<DeviceBackend> backend_;
};

INSTANTIATE_TEST_SUITE_P(Devices, BackendContract, ::testing::ValuesIn(kinds()),
                         [](auto const& info) { return info.param.name; });

TEST_P(BackendContract, ACapabilityThatIsOffSaysWhy) {
  for (auto const& [name, field] : capability_fields()) {
    EXPECT_EQ(backend_->why_not(name).empty(), has(field)) << name << ": " << backend_->why_not(name);
  }
  EXPECT_THROW((void)backend_->why_not("teleport"), std::invalid_argument);
}

TEST_P(BackendContract, TheCallersDeviceIsAsBefore) {
  c10::DeviceGuard const elsewhere(c10::Device(c10::kPrivateUse1, 0));
  (void)backend_->capabilities();
  (void)backend_->current_stream();
  (void)backend_->allocate(256);
  backend_->synchronize();
  backend_->empty_cache();
  EXPECT_EQ(stub::current_device(), 0);
}

TEST_P(BackendContract, TheCurrentStreamCanBeSetAndPutBack) {
  auto const before = backend_->current_stream();
  auto const stream = has(&Capabilities::streams) ? backend_->new_stream(0) : backend_->default_stream();
  EXPECT_EQ(backend_->set_current_stream(stream), before);
  EXPECT_EQ(backend_->current_stream(), stream);
  EXPECT_EQ(backend_->set_current_stream(before), stream);
  EXPECT_EQ(backend_->current_stream(), before);
}

TEST_P(BackendContract, ANewStreamIsOfThisDeviceOrRefused) {
  if (has(&Capabilities::streams) || backend_->device().is_cpu()) {
    auto const stream = backend_->new_stream(0);
    EXPECT_EQ(stream.device(), backend_->device());
    EXPECT_NE(stream, backend_->default_stream());
  } else {
    try {
      (void)backend_->new_stream(0);
      FAIL() << "no error";
    } catch (UnsupportedOperation const& error) {
      EXPECT_THAT(error.what(), HasSubstr(backend_->device().str()));
      EXPECT_THAT(error.what(), HasSubstr("new_stream"));
    }
  }
}

TEST_P(BackendContract, AStreamOfAnotherDeviceIsRefused) {
  auto const foreign = c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::kCUDA, 0));
  EXPECT_THROW(backend_->set_current_stream(foreign), std::invalid_argument);
}

TEST_P(BackendContract, AnEventNotRecordedIsDoneAndOneRecordedBecomesDone) {
  if (!has(&Capabilities::events)) {
    EXPECT_THROW((void)backend_->new_event(false), UnsupportedOperation);
    return;
  }
  auto event = backend_->new_event(false);
  EXPECT_TRUE(event.query());
  event.synchronize();
  event.block(backend_->current_stream());
  event.record(backend_->current_stream());
  EXPECT_TRUE(event.recorded());
  event.synchronize();
  EXPECT_TRUE(event.query());
}

TEST_P(BackendContract, TimeBetweenEventsIsNotNegativeAndNeedsBothRecorded) {
  if (!has(&Capabilities::event_timing)) {
    EXPECT_THROW((void)backend_->new_event(true), UnsupportedOperation);
    return;
  }
  auto first = backend_->new_event(true);
  auto second = backend_->new_event(true);
  first.record(backend_->current_stream());
  EXPECT_THROW((void)first.elapsed_seconds(second), std::invalid_argument);
  second.record(backend_->current_stream());
  second.synchronize();
  EXPECT_GE(first.elapsed_seconds(second), 0.0);
}

TEST_P(BackendContract, DeviceMemoryIsAlignedAndOfThisDevice) {
  if (!has_bytes()) {
    return;
  }
  for (Bytes const bytes : {Bytes{1}, Bytes{511}, Bytes{4097}}) {
    auto const memory = backend_->allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % 512, 0U);
    EXPECT_EQ(memory.device(), backend_->device());
  }
  (void)backend_->allocate(0);
}

TEST_P(BackendContract, BytesGoToTheDeviceAndComeBack) {
  if (!has_bytes()) {
    EXPECT_THROW(backend_->copy_to_host(nullptr, nullptr, 8, backend_->current_stream()), UnsupportedOperation);
    return;
  }
  std::vector<std::uint8_t> there(5000);
  std::iota(there.begin(), there.end(), std::uint8_t{3});
  std::vector<std::uint8_t> back(there.size());
  auto const first = backend_->allocate(there.size());
  auto const second = backend_->allocate(there.size());
  auto const stream = backend_->current_stream();
  backend_->copy_to_device(first.get(), there.data(), there.size(), stream);
  backend_->copy_on_device(second.get(), first.get(), there.size(), stream);
  backend_->copy_to_host(back.data(), second.get(), there.size(), stream);
  backend_->synchronize(stream);
  EXPECT_EQ(back, there);
  backend_->copy_to_device(first.get(), nullptr, 0, stream);
}

TEST_P(BackendContract, PageableMemoryMayChangeOnceTheCopyHasReturned) {
  if (!has_bytes()) {
    return;
  }
  std::vector<std::uint8_t> host(64, 7);
  auto const memory = backend_->allocate(host.size());
  auto const stream = backend_->current_stream();
  backend_->copy_to_device(memory.get(), host.data(), host.size(), stream);
  std::ranges::fill(host, std::uint8_t{9});
  std::vector<std::uint8_t> back(host.size());
  backend_->copy_to_host(back.data(), memory.get(), back.size(), stream);
  EXPECT_THAT(back, ::testing::Each(7));
}

TEST_P(BackendContract, FillSetsEveryByte) {
  if (!has_bytes()) {
    return;
  }
  std::vector<std::uint8_t> back(3000);
  auto const memory = backend_->allocate(back.size());
  auto const stream = backend_->current_stream();
  backend_->fill(memory.get(), 0xA5, back.size(), stream);
  backend_->copy_to_host(back.data(), memory.get(), back.size(), stream);
  backend_->synchronize(stream);
  EXPECT_THAT(back, ::testing::Each(0xA5));
}

TEST_P(BackendContract, PinnedMemoryIsPinnedOrRefused) {
  if (!has(&Capabilities::pinned_memory)) {
    EXPECT_THROW((void)backend_->allocate_pinned(4096), UnsupportedOperation);
    return;
  }
  auto block = backend_->allocate_pinned(5000);
  EXPECT_EQ(block.size(), 5000U);
  EXPECT_GE(block.booked_bytes(), block.size());
  EXPECT_EQ(block.span().size(), 5000U);
  EXPECT_TRUE(backend_->is_pinned(block.data()));
  EXPECT_TRUE(backend_->is_pinned(block.data() + 4999));
  auto const* const address = block.data();
  block.reset();
  EXPECT_FALSE(block);
  EXPECT_FALSE(backend_->is_pinned(address));
  std::byte ordinary{};
  EXPECT_FALSE(backend_->is_pinned(&ordinary));
}

TEST_P(BackendContract, StatisticsFollowOurBlockOrAreRefused) {
  if (!has(&Capabilities::memory_stats)) {
    EXPECT_THROW((void)backend_->max_memory_allocated(), UnsupportedOperation);
    EXPECT_THROW(backend_->reset_peak_memory_stats(), UnsupportedOperation);
    return;
  }
  backend_->reset_peak_memory_stats();
  auto const before = backend_->memory_allocated();
  auto const peak_before = backend_->max_memory_allocated();
  EXPECT_GE(peak_before, before / 2);
  constexpr Bytes kBlock = Bytes{32} << 20U;
  {
    auto const memory = backend_->allocate(kBlock);
    backend_->fill(memory.get(), 1, kBlock, backend_->current_stream());
    EXPECT_GE(backend_->memory_allocated(), before + kBlock / 2);
  }
  EXPECT_GE(backend_->max_memory_allocated(), before + kBlock / 2);
  backend_->reset_peak_memory_stats();
  EXPECT_LT(backend_->max_memory_allocated(), before + kBlock / 2);
}

TEST_P(BackendContract, FreeMemoryIsWithinTheTotalOrRefused) {
  if (!has(&Capabilities::memory_info)) {
    EXPECT_THROW((void)backend_->mem_get_info(), UnsupportedOperation);
    return;
  }
  auto const info = backend_->mem_get_info();
  EXPECT_GT(info.free_bytes, 0U);
  EXPECT_LE(info.free_bytes, info.total_bytes);
}

TEST_P(BackendContract, TheSameSeedGivesTheSameStateAndAStateCanBePutBack) {
  if (!has(&Capabilities::generator)) {
    EXPECT_THROW(backend_->manual_seed(1), UnsupportedOperation);
    EXPECT_THROW((void)backend_->rng_state(), UnsupportedOperation);
    return;
  }
  backend_->manual_seed(7);
  auto const seven = backend_->rng_state();
  backend_->manual_seed(8);
  EXPECT_FALSE(seven.equal(backend_->rng_state()));
  backend_->set_rng_state(seven);
  EXPECT_TRUE(seven.equal(backend_->rng_state()));
}

TEST_P(BackendContract, SynchronizeMayAlwaysBeCalled) {
  if (!has(&Capabilities::events) && has(&Capabilities::streams)) {
    return;
  }
  backend_->synchronize();
  backend_->synchronize(backend_->current_stream());
  backend_->empty_cache();
}

TEST_P(BackendContract, OnlyOutOfMemoryIsOutOfMemory) {
  EXPECT_FALSE(backend_->is_out_of_memory(std::runtime_error("shapes do not match")));
  EXPECT_FALSE(backend_->is_out_of_memory(std::runtime_error("out of range")));
}

}  // namespace
}  // namespace noria

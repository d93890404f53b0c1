// A managed weight's bytes may be taken away: whoever asks for them gets the weight's own message, and no crash.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/torch/simulated.h"

namespace noria::simtorch {
namespace {

class EvictedWeight : public testing::Test {
 protected:
  void SetUp() override {
    enable(one_device());
    weight = at::ones({4, 4}, on_device());
    auto* const storage = weight.storage().unsafeGetStorageImpl();
    bytes = std::move(storage->_mutable_data_ptr_no_checks());
    storage->set_data_ptr_noswap({nullptr, sim_device(0)});
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_("EvictedWeightError: block.weight");
  }

  void TearDown() override {
    weight.reset();
    bytes.clear();
  }

  void bring_back() {
    auto* const storage = weight.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(std::move(bytes));
    storage->clear_data_ptr_access_error_msg_();
  }

  at::Tensor weight;
  c10::DataPtr bytes;
};

template <typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (std::exception const& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(EvictedWeight, RaisesItsOwnMessageInEveryKindOfOperator) {
  auto const x = at::ones({4, 4}, on_device());
  auto const host = at::ones({4, 4});
  using testing::HasSubstr;
  EXPECT_THAT(message_of([&] { return at::mm(x, weight); }), HasSubstr("EvictedWeightError: block.weight"));
  EXPECT_THAT(message_of([&] { return weight.add_(x); }), HasSubstr("EvictedWeightError: block.weight"));
  EXPECT_THAT(message_of([&] { return at::cat({x, weight}); }), HasSubstr("EvictedWeightError: block.weight"));
  EXPECT_THAT(message_of([&] { return weight.cpu(); }), HasSubstr("EvictedWeightError: block.weight"));
  EXPECT_THAT(message_of([&] { return weight.copy_(host); }), HasSubstr("EvictedWeightError: block.weight"));
  EXPECT_THAT(message_of([&] { return weight[0][0].item(); }), HasSubstr("EvictedWeightError: block.weight"));
}

TEST_F(EvictedWeight, LeavesTheDeviceUsable) {
  auto const x = at::ones({4, 4}, on_device());
  EXPECT_ANY_THROW(at::mm(x, weight));
  EXPECT_EQ(at::mm(x, x).sum().item<float>(), 64.0F);
}

TEST_F(EvictedWeight, ViewsNeedNoBytesAndFollowThemWhenTheyComeBack) {
  auto const transposed = weight.t();
  auto const row = weight.select(0, 1);
  auto const flat = weight.view({16});
  auto const windows = weight.unfold(0, 2, 1);
  weight.record_stream(to_torch(current_stream()));
  bring_back();
  weight.mul_(3.0);
  EXPECT_EQ(transposed.sum().item<float>(), 48.0F);
  EXPECT_EQ(row.sum().item<float>(), 12.0F);
  EXPECT_EQ(flat.sum().item<float>(), 48.0F);
  EXPECT_EQ(windows.size(0), 3);
}

}  // namespace
}  // namespace noria::simtorch

// The C++ face of the simulator.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <noria/sim.h>

#include <stdexcept>

namespace noria::sim {
namespace {

TEST(Sim, ACppProgramRunsAModelInVirtualTime) {
  enable({.profile = "h100", .checker = "record"});
  auto const device = at::Device("sim:0");
  auto const x = at::ones({256, 256}).to(device);
  reset_clock();
  auto const y = at::relu(at::mm(x, x));
  EXPECT_GT(clock(), 0.0);
  EXPECT_EQ(y.cpu().sum().item<float>(), 256.0F * 256.0F * 256.0F);
}

TEST(Sim, WrongOptionsSayWhatIsRight) {
  EXPECT_THROW(enable({.devices = 0}), std::invalid_argument);
  EXPECT_THROW(enable({.checker = "loud"}), std::invalid_argument);
  EXPECT_THROW(enable({.profile = "abacus"}), std::invalid_argument);
  EXPECT_THROW(enable({.copy_engines = 3}), std::invalid_argument);
}

}  // namespace
}  // namespace noria::sim

#include "core/log.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace noria {
namespace {

class Log : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel level, std::string_view text) { said_.emplace_back(level, text); });
  }
  void TearDown() override { set_log_sink({}); }
  std::vector<std::pair<LogLevel, std::string>> said_;
};

TEST_F(Log, ReachesTheSink) {
  log(LogLevel::kWarning, "hello");
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_EQ(said_[0].second, "hello");
}

TEST_F(Log, OnceSaysAKeyOnce) {
  log_once(LogLevel::kInfo, "log_test", "first");
  log_once(LogLevel::kInfo, "log_test", "second");
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_EQ(said_[0].second, "first");
}

TEST_F(Log, ASinkThatThrowsDoesNotReachTheCaller) {
  set_log_sink([](LogLevel, std::string_view) { throw std::runtime_error("sink"); });
  EXPECT_NO_THROW(log(LogLevel::kError, "lost"));
}

}  // namespace
}  // namespace noria

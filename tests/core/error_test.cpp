#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <noria/error.h>

namespace noria {
namespace {
using ::testing::HasSubstr;

TEST(Error, CheckThrowsTheNamedTypeAndCarriesItsFigures) {
  try {
    NORIA_CHECK(1 > 2, BudgetError, "budget too small", 42);
    FAIL();
  } catch (BudgetError const& error) {
    EXPECT_STREQ(error.what(), "budget too small");
    EXPECT_EQ(error.smallest_bytes(), 42U);
  }
}

TEST(Error, AssertNamesConditionAndPlace) {
  try {
    NORIA_ASSERT(1 > 2, "order of numbers");
    FAIL();
  } catch (Error const& error) {
    EXPECT_THAT(error.what(), HasSubstr("1 > 2"));
    EXPECT_THAT(error.what(), HasSubstr("error_test.cpp"));
    EXPECT_THAT(error.what(), HasSubstr("order of numbers"));
  }
}

TEST(Error, StorageErrorKeepsPathAndErrno) {
  StorageError const error("cannot read", "/model/x", 5);
  EXPECT_EQ(error.path(), "/model/x");
  EXPECT_EQ(error.error_number(), 5);
}

}  // namespace
}  // namespace noria

#include <gtest/gtest.h>
#include <noria/bytes.h>

#include <stdexcept>

namespace noria {
namespace {
using namespace literals;

TEST(Bytes, ParsesEveryFormOfTheContract) {
  EXPECT_EQ(parse_byte_amount("6GiB").bytes, 6_GiB);
  EXPECT_EQ(parse_byte_amount("512MiB").bytes, 512_MiB);
  EXPECT_EQ(parse_byte_amount("1.5GB").bytes, 1500000000U);
  EXPECT_EQ(parse_byte_amount(" 4096 ").bytes, 4096U);
  EXPECT_EQ(parse_byte_amount("3 kb").bytes, 3000U);
  EXPECT_EQ(parse_byte_amount("80%").resolve(1000), 800U);
  EXPECT_EQ(parse_byte_amount("0").resolve(1000), 0U);
}

TEST(Bytes, RefusesWhatIsNotAnAmountAndShowsIt) {
  for (char const* text : {"", "GiB", "-1", "1.5XB", "0%", "101%", "nan", "inf", "1e30GiB", "12 34"}) {
    try {
      (void)parse_byte_amount(text);
      ADD_FAILURE() << "accepted " << text;
    } catch (std::invalid_argument const& error) {
      EXPECT_NE(std::string(error.what()).find(std::string("'") + text + "'"), std::string::npos) << error.what();
    }
  }
}

TEST(Bytes, PrintsOneDecimalAndNeverAThousandOfAUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1_MiB - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(1_GiB + 400_MiB), "1.4 GiB");
}

TEST(Bytes, AlignsUp) {
  EXPECT_EQ(align_up(0, 512), 0U);
  EXPECT_EQ(align_up(1, 512), 512U);
  EXPECT_EQ(align_up(512, 512), 512U);
}

}  // namespace
}  // namespace noria

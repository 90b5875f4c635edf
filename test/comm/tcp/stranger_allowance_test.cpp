#include "comm/tcp/stranger_allowance.hpp"

#include <string>

#include <gtest/gtest.h>

namespace gossamer::tcp {
namespace {

using std::chrono::milliseconds;

class Allowance : public testing::Test {
 protected:
  /// How many of `attempts` from there may introduce themselves at this time.
  int taken(const std::string& address, int attempts) {
    int number = 0;
    for (int i = 0; i < attempts; ++i) number += allowance_.take(address, now_) ? 1 : 0;
    return number;
  }

  StrangerAllowance allowance_;
  StrangerAllowance::Time now_{std::chrono::hours(1)};
};

TEST_F(Allowance, IsUsedUpAndGrowsWithTime) {
  EXPECT_EQ(taken("a", 5000), 1024);
  EXPECT_TRUE(allowance_.is_flooded());
  EXPECT_EQ(taken("b", 5000), 1024) << "an address does not pay for another one";
  now_ += milliseconds(1000);
  EXPECT_EQ(taken("a", 5000), 20);
  now_ += std::chrono::hours(1);
  EXPECT_EQ(taken("a", 1), 1);
  EXPECT_FALSE(allowance_.is_flooded());
  EXPECT_EQ(taken("a", 5000), 1023);
}

TEST_F(Allowance, CostsRanksNothing) {
  for (int i = 0; i < 5000; ++i) {
    EXPECT_TRUE(allowance_.take("a", now_));
    allowance_.give_back("a");
  }
  EXPECT_EQ(taken("a", 5000), 1024);
}

TEST_F(Allowance, BearsManyAddresses) {
  int number = 0;
  for (int i = 0; i < 20'000; ++i) number += taken("address " + std::to_string(i), 1);
  // Beyond the first 4096 they share one account.
  EXPECT_EQ(number, 4096 + 1024);
}

}  // namespace
}  // namespace gossamer::tcp

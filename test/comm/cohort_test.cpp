#include "comm/cohort.hpp"

#include <string>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

TEST(Cohort, StandsInAnAddress) {
  const std::string address =
      with_cohort("10.0.0.1 4000 ab", {.name = "node-1", .place = 1, .size = 2});
  EXPECT_EQ(address, "10.0.0.1 4000 ab as 1/2 of node-1");
  const Cohort cohort = cohort_of(address);
  EXPECT_EQ(cohort.name, "node-1");
  EXPECT_EQ(cohort.place, 1);
  EXPECT_EQ(cohort.size, 2);
}

TEST(Cohort, OfOneProcessAddsNothing) {
  EXPECT_EQ(with_cohort("a", {.name = "node-1"}), "a");
  EXPECT_EQ(cohort_of("a").size, 1);
}

TEST(Cohort, HasMates) {
  EXPECT_TRUE(are_mates("a as 0/2 of x", "b as 1/2 of x"));
  EXPECT_FALSE(are_mates("a as 0/2 of x", "b as 1/2 of y"));
  EXPECT_FALSE(are_mates("a", "b"));
}

class NoCohort : public testing::TestWithParam<std::string> {};

TEST_P(NoCohort, StandsInOtherTexts) { EXPECT_EQ(cohort_of(GetParam()).size, 1); }

INSTANTIATE_TEST_SUITE_P(Texts, NoCohort,
                         testing::Values("a as b", "a as 1 of x", "a as 2/2 of x", "a as 0/ of x",
                                         "a as -1/2 of x", "a as 0/2"));

}  // namespace
}  // namespace gossamer

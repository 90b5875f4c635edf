#include "optim/schedule.hpp"

#include <cmath>
#include <numbers>
#include <string_view>

#include <gtest/gtest.h>

#include "optim/registry.hpp"

namespace gossamer {
namespace {

double lr_at(std::string_view name, std::int64_t s, std::string_view options = "",
             const ScheduleBase& base = {.lr = 0.003, .total_steps = 100}) {
  return make_schedule(name, base, Options::parse(options))->lr(s);
}

TEST(ConstantSchedule, NeverChanges) {
  for (const std::int64_t s : {0, 1, 99, 1'000'000}) EXPECT_EQ(lr_at("constant", s), 0.003);
}

TEST(CosineSchedule, FollowsItsFormula) {
  const auto schedule =
      make_schedule("cosine_with_warmup", {.lr = 0.003, .total_steps = 7},
                    Options::parse("t_max: 8, t_warmup: 4, eta_min: 1e-6, warmup_decay: 0.01"));
  for (std::int64_t s = 0; s < 4; ++s) {
    const double expected = 0.003 * (0.01 + 0.99 * static_cast<double>(s) / 4.0);
    EXPECT_NEAR(schedule->lr(s), expected, 1e-17) << s;
  }
  for (std::int64_t s = 4; s <= 12; ++s) {
    const double q = static_cast<double>(s - 4);
    const double expected =
        1e-6 + (0.003 - 1e-6) * (1.0 + std::cos(std::numbers::pi * q / 8.0)) / 2.0;
    EXPECT_NEAR(schedule->lr(s), expected, 1e-17) << s;
  }
}

TEST(CosineSchedule, StaysAtItsEnd) {
  constexpr std::string_view kOptions = "t_max: 8, t_warmup: 4, eta_min: 1e-6";
  EXPECT_NEAR(lr_at("cosine_with_warmup", 11, kOptions), 1.151e-4, 1e-7);
  for (const std::int64_t s : {12, 13, 20, 28, 1'000'000}) {
    EXPECT_EQ(lr_at("cosine_with_warmup", s, kOptions), 1e-6) << s;
  }
}

TEST(CosineSchedule, GivesTheRecordedNumbers) {
  // From a golden trace: lr 0.003, t_max 8, t_warmup 4, eta_min 1e-6, warmup_decay 0.01.
  constexpr double kRecorded[] = {3e-05,
                                  0.0007725,
                                  0.0015149999999999999,
                                  0.0022575,
                                  0.003,
                                  0.0028858573590006746,
                                  0.002560806618389228,
                                  0.0020743338068314526,
                                  0.0015005,
                                  0.0009266661931685481,
                                  0.0004401933816107722,
                                  0.00011514264099932556};
  std::int64_t s = 0;
  for (const double expected : kRecorded) {
    const double lr = lr_at("cosine_with_warmup", s++,
                            "t_max: 8, t_warmup: 4, eta_min: 1e-6, warmup_decay: 0.01");
    EXPECT_NEAR(lr, expected, 1e-16);
  }
}

TEST(CosineSchedule, FillsTheRunByDefault) {
  constexpr std::string_view kWarmup = "t_warmup: 20, eta_min: 1e-5";
  EXPECT_DOUBLE_EQ(lr_at("cosine_with_warmup", 0, kWarmup), 0.01 * 0.003);
  EXPECT_DOUBLE_EQ(lr_at("cosine_with_warmup", 20, kWarmup), 0.003);
  EXPECT_DOUBLE_EQ(lr_at("cosine_with_warmup", 60, kWarmup), (0.003 + 1e-5) / 2.0);
  EXPECT_DOUBLE_EQ(lr_at("cosine_with_warmup", 100, kWarmup), 1e-5);
  EXPECT_DOUBLE_EQ(lr_at("cosine_with_warmup", 0), 0.003);
  EXPECT_NEAR(lr_at("cosine_with_warmup", 100), 0.0, 1e-18);
}

TEST(CosineSchedule, SurvivesAWarmupLongerThanTheRun) {
  const ScheduleBase base{.lr = 1.0, .total_steps = 5};
  EXPECT_DOUBLE_EQ(lr_at("cosine_with_warmup", 5, "t_warmup: 10, warmup_decay: 0", base), 0.5);
  EXPECT_DOUBLE_EQ(lr_at("cosine_with_warmup", 10, "t_warmup: 10", base), 1.0);
  EXPECT_DOUBLE_EQ(lr_at("cosine_with_warmup", 11, "t_warmup: 10", base), 0.0);
}

TEST(StepSchedule, MultipliesAfterEveryStepSize) {
  constexpr std::string_view kOptions = "step_size: 10, gamma: 0.5";
  EXPECT_DOUBLE_EQ(lr_at("step", 0, kOptions), 0.003);
  EXPECT_DOUBLE_EQ(lr_at("step", 9, kOptions), 0.003);
  EXPECT_DOUBLE_EQ(lr_at("step", 10, kOptions), 0.0015);
  EXPECT_DOUBLE_EQ(lr_at("step", 19, kOptions), 0.0015);
  EXPECT_DOUBLE_EQ(lr_at("step", 35, kOptions), 0.003 / 8.0);
  EXPECT_DOUBLE_EQ(lr_at("step", 999), 0.003);
  EXPECT_DOUBLE_EQ(lr_at("step", 1000), 0.0003);
}

TEST(LinearSchedule, ClimbsThenFallsToItsEndFactor) {
  constexpr std::string_view kOptions =
      "t_warmup: 10, warmup_decay: 0.1, t_max: 50, end_factor: 0.2";
  EXPECT_DOUBLE_EQ(lr_at("linear", 0, kOptions), 0.0003);
  EXPECT_DOUBLE_EQ(lr_at("linear", 5, kOptions), 0.003 * 0.55);
  EXPECT_DOUBLE_EQ(lr_at("linear", 10, kOptions), 0.003);
  EXPECT_DOUBLE_EQ(lr_at("linear", 35, kOptions), 0.003 * 0.6);
  EXPECT_NEAR(lr_at("linear", 60, kOptions), 0.003 * 0.2, 1e-17);
  EXPECT_NEAR(lr_at("linear", 110, kOptions), 0.003 * 0.2, 1e-17);
  EXPECT_NEAR(lr_at("linear", 600, kOptions), 0.003 * 0.2, 1e-17);
}

TEST(LinearSchedule, FillsTheRunByDefault) {
  EXPECT_DOUBLE_EQ(lr_at("linear", 0), 0.003);
  EXPECT_DOUBLE_EQ(lr_at("linear", 25), 0.003 * 0.75);
  EXPECT_DOUBLE_EQ(lr_at("linear", 100), 0.0);
  EXPECT_DOUBLE_EQ(lr_at("linear", 60, "t_warmup: 20"), 0.003 * 0.5);
}

}  // namespace
}  // namespace gossamer

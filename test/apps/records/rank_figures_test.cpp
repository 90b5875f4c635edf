#include "apps/records/rank_figures.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer::apps {
namespace {

using Values = std::vector<double>;

const std::vector<WindowFigures> kWindows = {{.loss = 6.0,
                                              .num_losses = 2.0,
                                              .samples = 32.0,
                                              .seconds = 0.5,
                                              .wait_s = 0.125,
                                              .steps = 2.0,
                                              .all_steps = 12.0},
                                             {.loss = 3.0,
                                              .num_losses = 1.0,
                                              .samples = 16.0,
                                              .seconds = 1.0,
                                              .wait_s = 0.25,
                                              .steps = 1.0,
                                              .all_steps = 11.0}};

TEST(WindowFields, AreOfAllRanksAndOfEach) {
  const auto fields = window_fields(kWindows, /*in_step=*/true);
  EXPECT_EQ(fields["loss"], 3.0);
  EXPECT_EQ(fields["samples_per_s"], 96.0);
  EXPECT_EQ(fields["rank_loss"], Values({3.0, 3.0}));
  EXPECT_EQ(fields["rank_samples_per_s"], Values({64.0, 16.0}));
  EXPECT_EQ(fields["rank_wait_ms"], Values({62.5, 250.0}));
  EXPECT_FALSE(fields.contains("rank_steps"));
}

TEST(WindowFields, OfRanksThatCountForThemselvesHaveTheirSteps) {
  const auto fields = window_fields(kWindows, /*in_step=*/false);
  EXPECT_EQ(fields["samples_per_s"], 80.0);
  EXPECT_EQ(fields["rank_steps"], Values({12.0, 11.0}));
}

TEST(WindowFields, LeaveARankWithoutALossOut) {
  auto windows = kWindows;
  windows[1].loss = windows[1].num_losses = 0.0;
  const auto fields = window_fields(windows, /*in_step=*/true);
  EXPECT_EQ(fields["loss"], 3.0);
  EXPECT_TRUE(std::isnan(fields["rank_loss"][1].get<double>()));
}

TEST(RunFigures, BecomeMeansOverRanksAndSteps) {
  const Summary summary = summary_of({{.forward_s = 1.0,
                                       .wait_s = 0.5,
                                       .bytes_sent = 100.0,
                                       .train_s = 4.0,
                                       .samples = 40.0,
                                       .num_wide_differences = 3.0,
                                       .steps = 10.0},
                                      {.forward_s = 2.0,
                                       .wait_s = 1.5,
                                       .bytes_sent = 300.0,
                                       .train_s = 4.0,
                                       .samples = 40.0,
                                       .num_wide_differences = 4.0,
                                       .steps = 10.0}},
                                     10);
  EXPECT_EQ(summary.world_size, 2);
  EXPECT_EQ(summary.forward_ms, 150.0);
  EXPECT_EQ(summary.wait_ms, 100.0);
  EXPECT_EQ(summary.bytes_sent_per_step, 20.0);
  EXPECT_EQ(summary.samples_per_s, 20.0);
  EXPECT_EQ(summary.num_wide_differences, 7);
  EXPECT_EQ(summary.rank_wait_ms, Values({50.0, 150.0}));
  EXPECT_EQ(to_json(summary)["kind"], "final");
}

}  // namespace
}  // namespace gossamer::apps

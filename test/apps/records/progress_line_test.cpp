#include "apps/records/progress_line.hpp"

#include <cmath>

#include <gtest/gtest.h>

namespace gossamer::apps {
namespace {

TEST(ProgressText, ShowsWhatIsKnown) {
  ProgressState state{.step = 7,
                      .total_steps = 1000,
                      .loss = 2.30259,
                      .lr = 0.001,
                      .samples_per_s = 1234.4,
                      .seconds_left = 65.2,
                      .consensus_distance = {}};
  EXPECT_EQ(to_string(state), "step 7/1000  loss 2.3026  lr 1.00e-03  1234 samples/s  left 1:05");
  state.consensus_distance = 0.0123;
  state.seconds_left = 3600 * 25 + 182;
  EXPECT_EQ(to_string(state),
            "step 7/1000  loss 2.3026  lr 1.00e-03  1234 samples/s  consensus 1.230e-02  left "
            "25:03:02");
  state.seconds_left = 0.4;
  EXPECT_TRUE(to_string(state).ends_with("left 0:00"));
}

TEST(ProgressText, LeavesOutWhatIsNotKnown) {
  const ProgressState state{
      .step = 7, .loss = 2.5, .lr = 0.1, .samples_per_s = std::nan(""), .consensus_distance = {}};
  EXPECT_EQ(to_string(state), "step 7  loss 2.5000  lr 1.00e-01");
}

}  // namespace
}  // namespace gossamer::apps

#include "core/bucket_tuner.hpp"

#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

constexpr std::int64_t kTrial = BucketTuner::kWarmup + BucketTuner::kMeasured;

/// A clock that gives a step with buckets of `size` the seconds that the test says.
class Clock {
 public:
  template <class Seconds>
  Clock(BucketTuner& tuner, const Seconds& seconds) {
    for (std::int64_t step = 0; !tuner.is_over(); ++step) {
      now_s_ += seconds(tuner.size(), step);
      sizes.push_back(tuner.size());
      tuner.end_step(now_s_);
    }
  }
  /// The size of every step.
  std::vector<std::int64_t> sizes;

 private:
  double now_s_ = 1000.0;
};

TEST(BucketTuner, TriesEverySizeThereAndBack) {
  BucketTuner tuner({25, 8, 1});
  const Clock clock(tuner, [](std::int64_t, std::int64_t) { return 1.0; });
  std::vector<std::int64_t> expected;
  for (const std::int64_t size : {25, 8, 1, 1, 8, 25})
    expected.insert(expected.end(), kTrial, size);
  EXPECT_EQ(clock.sizes, expected);
}

TEST(BucketTuner, MeasuresEachSize) {
  BucketTuner tuner({25, 8});
  const Clock clock(tuner, [](std::int64_t size, std::int64_t /*step*/) {
    return 0.001 * static_cast<double>(size);
  });
  EXPECT_NEAR(tuner.step_s()[0], 0.025, 1e-9);
  EXPECT_NEAR(tuner.step_s()[1], 0.008, 1e-9);
}

TEST(BucketTuner, LeavesOutTheFirstStepsAndRareLongOnes) {
  BucketTuner tuner({25, 8});
  const Clock clock(tuner, [](std::int64_t, std::int64_t step) {
    if (step % kTrial < BucketTuner::kWarmup) return 50.0;
    // An evaluation.
    return step % kTrial == BucketTuner::kWarmup + 3 ? 7.0 : 0.5;
  });
  EXPECT_NEAR(tuner.step_s()[0], 0.5, 1e-9);
  EXPECT_NEAR(tuner.step_s()[1], 0.5, 1e-9);
}

TEST(BucketTuner, FavoursNoSizeWhenTheMachineDrifts) {
  BucketTuner tuner({25, 8, 3, 1});
  const Clock clock(tuner, [](std::int64_t, std::int64_t step) {
    return 1.0 + 0.01 * static_cast<double>(step);
  });
  for (const double seconds : tuner.step_s()) EXPECT_NEAR(seconds, tuner.step_s()[0], 1e-9);
}

TEST(BucketTuner, NeedsASize) { EXPECT_THROW(BucketTuner({}), std::logic_error); }

}  // namespace
}  // namespace gossamer

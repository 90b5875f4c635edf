#include "core/bucket/bucket_tuner.hpp"

#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

constexpr std::int64_t kMeasured = 8;
constexpr std::int64_t kTrial = BucketTuner::kWarmup + kMeasured;

/// Runs all trials on a clock that gives a step with buckets of `size` the seconds that the test
/// says. Returns the size of every step.
template <class Seconds>
std::vector<std::int64_t> run(BucketTuner& tuner, const Seconds& seconds) {
  std::vector<std::int64_t> sizes;
  double now_s = 1000.0;
  for (std::int64_t step = 0; !tuner.is_over(); ++step) {
    now_s += seconds(tuner.size(), step);
    sizes.push_back(tuner.size());
    tuner.end_step(now_s);
  }
  return sizes;
}

double one_second(std::int64_t /*size*/, std::int64_t /*step*/) { return 1.0; }

TEST(BucketTuner, TriesEverySizeThereAndBack) {
  BucketTuner tuner({.sizes = {25, 8, 1}});
  std::vector<std::int64_t> expected;
  for (const std::int64_t size : {25, 8, 1, 1, 8, 25}) {
    expected.insert(expected.end(), kTrial, size);
  }
  EXPECT_EQ(run(tuner, one_second), expected);
}

TEST(BucketTuner, WaitsBeforeTheFirstTrial) {
  BucketTuner tuner({.sizes = {25, 8}, .num_before = 5, .num_measured = 3});
  std::vector<std::int64_t> expected(5 + 2 + 3, 25);
  for (const std::int64_t size : {8, 8, 25}) expected.insert(expected.end(), 2 + 3, size);
  EXPECT_EQ(run(tuner, [](std::int64_t, std::int64_t step) { return step < 5 ? 90.0 : 2.0; }),
            expected);
  EXPECT_EQ(tuner.step_s(), (std::vector{2.0, 2.0}));
}

TEST(BucketTuner, MeasuresEachSize) {
  BucketTuner tuner({.sizes = {25, 8}});
  run(tuner, [](std::int64_t size, std::int64_t step) {
    // Every fourth step communicates.
    return step % 4 == 0 ? static_cast<double>(size) : 0.5;
  });
  EXPECT_NEAR(tuner.step_s()[0], (25.0 + 3 * 0.5) / 4, 1e-9);
  EXPECT_NEAR(tuner.step_s()[1], (8.0 + 3 * 0.5) / 4, 1e-9);
}

TEST(BucketTuner, LeavesOutTheFirstStepsOfATrial) {
  BucketTuner tuner({.sizes = {25, 8}});
  run(tuner, [](std::int64_t, std::int64_t step) {
    return step % kTrial < BucketTuner::kWarmup ? 50.0 : 0.5;
  });
  EXPECT_NEAR(tuner.step_s()[0], 0.5, 1e-9);
  EXPECT_NEAR(tuner.step_s()[1], 0.5, 1e-9);
}

TEST(BucketTuner, MakesAnotherStepForOneThatIsSkipped) {
  BucketTuner tuner({.sizes = {25}});
  double now_s = 0.0;
  int num_steps = 0;
  for (; !tuner.is_over(); ++num_steps) {
    const bool evaluates = num_steps % 5 == 4;
    now_s += evaluates ? 60.0 : 0.5;
    if (evaluates) tuner.skip_step();
    tuner.end_step(now_s);
  }
  EXPECT_EQ(tuner.step_s(), std::vector{0.5});
  // Steps 4, 9, 14 and 19 are skipped; two of them would have been warm-up.
  EXPECT_EQ(num_steps, 2 * kTrial + 4);
}

TEST(BucketTuner, FavoursNoSizeWhenTheMachineDrifts) {
  BucketTuner tuner({.sizes = {25, 8, 3, 1}});
  run(tuner,
      [](std::int64_t, std::int64_t step) { return 1.0 + 0.01 * static_cast<double>(step); });
  for (const double seconds : tuner.step_s()) EXPECT_NEAR(seconds, tuner.step_s()[0], 1e-9);
}

TEST(BucketTuner, NeedsASize) { EXPECT_THROW(BucketTuner({}), std::logic_error); }

}  // namespace
}  // namespace gossamer

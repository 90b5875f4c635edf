// What ranks agree on that make different numbers of steps: sums, steps and learning rates.

#include "apps/train/control_sync.hpp"

#include "test/core/ranks.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "apps/train/step_count.hpp"
#include "base/random.hpp"
#include "optim/registry.hpp"

namespace gossamer::apps {
namespace {

TEST(StepCount, KnowsWhatHasPassed) {
  const std::shared_ptr<const Schedule> constant = make_schedule("constant", {.lr = 1.0});
  StepCount in_step(5, true, constant);
  std::vector<std::int64_t> passed;
  std::vector<std::int64_t> due;
  while (!in_step.is_over()) {
    in_step.mark_handled();
    in_step.add();
    EXPECT_EQ(in_step.run(), in_step.own());
    if (in_step.has_passed(2)) passed.push_back(in_step.run());
    if (in_step.is_due(2)) due.push_back(in_step.run());
    EXPECT_FALSE(in_step.is_due(0));
  }
  EXPECT_EQ(passed, (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(due, (std::vector<std::int64_t>{2, 4, 5}));
  // A run that the rank joins has other steps than the rank thought.
  const std::shared_ptr<const Schedule> pipeline = in_step.schedule();
  in_step.replan(9, make_schedule("constant", {.lr = 3.0}));
  EXPECT_EQ(in_step.total(), 9);
  EXPECT_EQ(pipeline->lr(5), 3.0);
  in_step.catch_up(7, 5);
  EXPECT_EQ(in_step.own(), 7);
  EXPECT_TRUE(in_step.has_passed(6));
  EXPECT_FALSE(in_step.has_passed(5)) << "settled there";

  StepCount apart(20, false, constant);
  for (int step = 0; step < 7; ++step) apart.add();
  EXPECT_EQ(apart.run(), 0) << "until it hears of the others";
  apart.set_mean_steps(5, 7);
  EXPECT_TRUE(apart.has_passed(4));
  apart.set_mean_steps(6, 7);
  EXPECT_TRUE(apart.has_passed(4)) << "not settled yet";
  apart.mark_handled();
  EXPECT_FALSE(apart.has_passed(4));
  apart.set_mean_steps(30, 9);
  EXPECT_EQ(apart.run(), 20);
  EXPECT_TRUE(apart.is_over());
}

TEST(StepCount, AddsOwnStepsToTheMeanOfAllRanks) {
  constexpr std::int64_t kTotal = 100;
  const std::shared_ptr<const Schedule> linear =
      make_schedule("linear", {.lr = 1.0, .total_steps = kTotal});
  StepCount steps(kTotal, false, linear);
  const std::shared_ptr<const Schedule> schedule = steps.schedule();
  EXPECT_EQ(schedule->lr(3), linear->lr(3));
  steps.set_mean_steps(40, 70);
  EXPECT_EQ(schedule->lr(70), linear->lr(40));
  EXPECT_EQ(schedule->lr(75), linear->lr(45));
  EXPECT_EQ(schedule->lr(1000), linear->lr(kTotal - 1)) << "behind the end";
  steps.set_mean_steps(40, 10);
  EXPECT_EQ(schedule->lr(12), linear->lr(42));
}

TEST(StepCount, TheLearningRateDoesNotRiseAgainBehindTheEnd) {
  const StepCount steps(10, false,
                        make_schedule("cosine_with_warmup", {.lr = 1.0, .total_steps = 10}));
  const double end = steps.schedule()->lr(9);
  EXPECT_GT(end, 0.0);
  for (int step = 10; step < 40; ++step) EXPECT_EQ(steps.schedule()->lr(step), end);
}

TEST(ControlSync, GiveAllRanksTheSameSumsWhateverTheirPace) {
  constexpr int kNumRanks = 3;
  constexpr std::size_t kNumSums = 12;
  std::vector<std::vector<std::int64_t>> steps(kNumRanks);
  std::vector<std::vector<std::int64_t>> signals(kNumRanks);
  run_ranks(kNumRanks, [&](Communicator& communicator, const World& world) {
    ControlSync meetings(communicator);
    Random random(1, static_cast<std::uint64_t>(world.rank));
    std::int64_t own = 0;
    const auto rank = static_cast<std::size_t>(world.rank);
    while (steps[rank].size() < kNumSums) {
      const auto status =
          meetings.poll({.terminate = world.rank == 1 && own > 4 ? 1 : 0, .steps = own});
      if (status) {
        steps[rank].push_back(status->steps);
        signals[rank].push_back(status->num_signals());
        continue;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(3000)));
      ++own;
    }
    meetings.leave();
  });
  EXPECT_EQ(steps[1], steps[0]);
  EXPECT_EQ(steps[2], steps[0]);
  EXPECT_EQ(signals[1], signals[0]);
  EXPECT_EQ(signals[2], signals[0]);
  for (std::size_t k = 1; k < kNumSums; ++k) EXPECT_GT(steps[0][k], steps[0][k - 1]);
  EXPECT_EQ(signals[0].back(), 1);
}

}  // namespace
}  // namespace gossamer::apps

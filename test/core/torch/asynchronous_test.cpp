// Tests DecentralizedDataParallel under an algorithm whose ranks make different numbers of steps.

#include "test/base/thrown.hpp"
#include "test/core/torch/scenario.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace gossamer {
namespace {

Scenario asynchronous_scenario(int num_ranks) {
  return {.num_ranks = num_ranks,
          .algorithm = "async_gossip",
          .algorithm_options = "max_staleness: 4",
          .topology = "static-exp",
          .optimizer = "adamw",
          .lr = 0.01};
}

/// The number of steps that a rank makes.
int steps_of(int rank) { return 4 + 5 * rank; }

/// Trains for as many steps, with pauses.
void train_for(int num_steps, DecentralizedDataParallel<Bag>& model, const Scenario& scenario,
               int rank) {
  Random random(2, static_cast<std::uint64_t>(rank));
  for (int step = 0; step < num_steps; ++step) {
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(2000)));
    make_step(model, scenario, rank, step);
  }
}

TEST(AsynchronousModel, HasOneMeanAfterDifferentNumbersOfSteps) {
  constexpr int kNumRanks = 3;
  const Scenario scenario = asynchronous_scenario(kNumRanks);
  std::vector<Values> means(kNumRanks);
  on_ranks(kNumRanks, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    DecentralizedDataParallel<Bag> model(make_mlp(rank), communicator, scenario.options());
    const Values start = copy_values(model.module());
    // Twice: averaging closes the mailbox, and the next step opens it again.
    for (int turn = 1; turn <= 2; ++turn) {
      train_for(steps_of(rank), model, scenario, rank);
      EXPECT_EQ(model.progress().num_steps, turn * steps_of(rank));
      model.drain();
      const Values own = copy_values(model.module());
      {
        const AverageScope scope = model.global_average();
        means[static_cast<std::size_t>(rank)] = copy_values(model.module());
        EXPECT_GT(scope.consensus_distance(), 0.0);
      }
      expect_equal(copy_values(model.module()), own);
      for (const auto& [name, tensor] : means[static_cast<std::size_t>(rank)]) {
        EXPECT_TRUE(torch::isfinite(tensor).all().item<bool>()) << name;
        EXPECT_FALSE(torch::equal(tensor, start.at(name))) << name;
      }
    }
  });
  expect_equal(means[1], means[0]);
  expect_equal(means[2], means[0]);
}

TEST(AsynchronousModel, RefusesWhatNeedsCommonSteps) {
  Scenario scenario = asynchronous_scenario(2);
  scenario.bucket_bytes = 0;
  const auto make = [&scenario](const DataParallelOptions& options) {
    return config_errors(2, [&](Communicator& communicator) {
      DecentralizedDataParallel<Bag>(make_mlp(0), communicator, options);
    });
  };
  for (const std::string& text : make(scenario.options())) {
    EXPECT_TRUE(contains(text, "bucket_bytes")) << text;
  }
  scenario.bucket_bytes = 1;
  DataParallelOptions options = scenario.options();
  options.average_buffers_every = 2;
  for (const std::string& text : make(options)) {
    EXPECT_TRUE(contains(text, "average_buffers_every")) << text;
  }
}

}  // namespace
}  // namespace gossamer

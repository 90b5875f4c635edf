// Training whose ranks make different numbers of steps.

#include "test/apps/train/config_text.hpp"
#include "test/apps/train/train_run.hpp"
#include "test/core/ranks.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "apps/train/common_schedule.hpp"
#include "apps/train/meetings.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "optim/registry.hpp"

namespace gossamer::apps {
namespace {

TEST(CommonSchedule, AddsOwnStepsToTheMeanOfAllRanks) {
  constexpr std::int64_t kTotal = 100;
  const std::shared_ptr<const Schedule> linear =
      make_schedule("linear", {.lr = 1.0, .total_steps = kTotal});
  CommonSchedule schedule(linear, kTotal);
  EXPECT_EQ(schedule.lr(3), linear->lr(3));
  schedule.set(40, 70);
  EXPECT_EQ(schedule.lr(70), linear->lr(40));
  EXPECT_EQ(schedule.lr(75), linear->lr(45));
  EXPECT_EQ(schedule.lr(1000), linear->lr(kTotal)) << "behind the end";
  schedule.set(40, 10);
  EXPECT_EQ(schedule.lr(12), linear->lr(42));
}

TEST(CommonSchedule, DoesNotRiseAgainBehindTheEnd) {
  CommonSchedule schedule(make_schedule("cosine_with_warmup", {.lr = 1.0, .total_steps = 10}), 10);
  const double end = schedule.lr(10);
  for (int step = 11; step < 40; ++step) EXPECT_EQ(schedule.lr(step), end);
}

TEST(Meetings, GiveAllRanksTheSameSumsWhateverTheirPace) {
  constexpr int kNumRanks = 3;
  constexpr std::size_t kNumSums = 12;
  std::vector<std::vector<std::int64_t>> steps(kNumRanks);
  std::vector<std::vector<std::int64_t>> signals(kNumRanks);
  run_ranks(kNumRanks, [&](Communicator& communicator, const World& world) {
    Meetings meetings(communicator);
    Random random(1, static_cast<std::uint64_t>(world.rank));
    std::int64_t own = 0;
    const auto rank = static_cast<std::size_t>(world.rank);
    while (steps[rank].size() < kNumSums) {
      const auto news =
          meetings.poll({.terminate = world.rank == 1 && own > 4 ? 1 : 0, .steps = own});
      if (news) {
        steps[rank].push_back(news->steps);
        signals[rank].push_back(news->num_signals());
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

const std::string kAsynchronous = concat(
    kMlp, "algorithm: {name: async_gossip, max_staleness: 3}\ntopology: {name: static-exp}\n");

/// The mean number of steps of the ranks, rounded down.
std::int64_t mean_steps(const nlohmann::json& record) {
  const auto ranks = record.at("rank_steps").get<std::vector<double>>();
  const double sum = std::accumulate(ranks.begin(), ranks.end(), 0.0);
  return static_cast<std::int64_t>(sum / static_cast<double>(ranks.size()));
}

TEST(AsynchronousTraining, EndsWhenTheRanksHaveMadeAllStepsInTheMean) {
  for (const int num_ranks : {1, 2, 3}) {
    for (const char* log : {"", "  consensus_every: 4\n  eval_every: 5\n"}) {
      SCOPED_TRACE(concat(num_ranks, " ranks, ", log));
      std::string yaml = kAsynchronous;
      yaml.replace(yaml.find("log: {level: off, every: 3}\n"), 28,
                   concat("log:\n  level: off\n  every: 3\n", log));
      const Outcome run = train(yaml, num_ranks);
      std::int64_t last = 0;
      for (const nlohmann::json& record : run.records) {
        const std::int64_t step = record.at("step");
        if (record.at("kind") == "eval") {
          EXPECT_GE(step, last);
        }
        if (record.at("kind") != "step") continue;
        EXPECT_GT(step, last);
        if (*log == 0) {
          EXPECT_GT(step / 3, last / 3) << "a multiple of log.every lies between";
        }
        EXPECT_EQ(record.at("rank_steps").size(), static_cast<std::size_t>(num_ranks));
        EXPECT_EQ(step, std::min<std::int64_t>(12, mean_steps(record)));
        EXPECT_TRUE(std::isfinite(record.at("loss").get<double>()));
        last = step;
      }
      EXPECT_EQ(last, 12);
      EXPECT_EQ(run.final_record().at("kind"), "final");
      EXPECT_EQ(run.final_record().at("step"), 12);
    }
  }
}

TEST(AsynchronousTraining, Learns) {
  const std::string yaml =
      "run: {steps: 90}\n"
      "model: {name: mlp, hidden: 64}\n"
      "data: {name: glyphs, train_size: 300, val_size: 70, batch_size: 10}\n"
      "algorithm: async_gossip\n"
      "topology: {name: static-exp}\n"
      "optimizer: {lr: 0.003}\n"
      "lr_schedule: {name: cosine_with_warmup}\n"
      "log: {level: off}\n";
  // Guessing gives 2.3.
  EXPECT_LT(train(yaml, 3).final_record().at("loss_mean_model").get<double>(), 1.5);
}

TEST(AsynchronousTraining, RefusesWhatAllRanksWouldDoAfterTheSameStep) {
  const std::string yaml = "algorithm: async_gossip\ntopology: {name: static-exp}\n";
  EXPECT_EQ(refusal(yaml), "");
  EXPECT_EQ(refusal(yaml + "train: {ema: 0.9}\n"),
            "conf.yaml:3:14: train.ema: is a mean over steps, of which the ranks make different "
            "numbers; allowed: null with async_gossip");
  EXPECT_EQ(refusal(yaml + "buckets: {size_mb: auto}\n"),
            "conf.yaml:3:20: buckets.size_mb: is auto, and the ranks try sizes together, step by "
            "step; allowed: a number with async_gossip");
  EXPECT_EQ(refusal(yaml + "log: {timeline: trace.json}\n"),
            "conf.yaml:3:17: log.timeline: records the same steps of all ranks; allowed: none with "
            "async_gossip");
  EXPECT_EQ(refusal("algorithm: {phases: [{until: 5, algorithm: async_gossip, topology: "
                    "static-exp}, {algorithm: allreduce}]}\n"),
            "conf.yaml:1:21: algorithm.phases: all ranks begin a phase after the same step; "
            "allowed: none with async_gossip");
  EXPECT_EQ(refusal("algorithm: {name: async_gossip, consensus_control: {target: 0.1, topology: "
                    "ring}}\ntopology: {name: static-exp}\n"),
            "conf.yaml:1:52: algorithm.consensus_control: all ranks change the topology after the "
            "same step; allowed: none with async_gossip");
}

}  // namespace
}  // namespace gossamer::apps

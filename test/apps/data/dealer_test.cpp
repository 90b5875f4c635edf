#include "apps/data/dealer.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "apps/data/sharding.hpp"
#include "base/error.hpp"
#include "base/random.hpp"

namespace gossamer::apps {
namespace {

constexpr std::uint64_t kSeed = 11;

/// Samples of ten classes.
Dealer::Setup setup_of(std::int64_t num_samples, std::optional<double> alpha = {}) {
  Dealer::Setup setup{.seed = kSeed, .dirichlet_alpha = alpha};
  for (std::int64_t i = 0; i < num_samples; ++i) setup.labels.push_back(i % 10);
  return setup;
}

TEST(Dealer, GivesTheBatchesOfARunWhoseRanksStay) {
  for (const std::optional<double> alpha : {std::optional<double>(), std::optional(0.3)}) {
    for (const int num_ranks : {1, 2, 3, 5}) {
      const Dealer::Setup setup = setup_of(107, alpha);
      const Dealer dealer(setup, {{.num_ranks = num_ranks, .batch_size = 6}});
      const auto shards = shard_samples(setup.labels, num_ranks, kSeed, alpha);
      const std::int64_t per_epoch = 107 / num_ranks / 6;
      EXPECT_EQ(dealer.batches_per_epoch(), per_epoch);
      EXPECT_EQ(dealer.batch_size(), 6);
      for (int rank = 0; rank < num_ranks; ++rank) {
        // In any order, so a resumed run can begin anywhere.
        for (const std::int64_t step : {0, 1, 2, 3, 7, 50, 51, 1000, 2}) {
          const std::vector<std::int64_t> order =
              shuffled_shard(shards[static_cast<std::size_t>(rank)], kSeed, rank, step / per_epoch);
          const auto first = order.begin() + step % per_epoch * 6;
          EXPECT_EQ(dealer.batch(rank, step), std::vector<std::int64_t>(first, first + 6));
        }
      }
    }
  }
}

TEST(Dealer, LeavesOtherSamplesOutInEveryEpoch) {
  // Five batches of 12; four samples are left out.
  const Dealer dealer(setup_of(64), {{.num_ranks = 1, .batch_size = 12}});
  ASSERT_EQ(dealer.batches_per_epoch(), 5);
  std::set<std::int64_t> ever;
  for (std::int64_t step = 0; step < 100; ++step) {
    for (const std::int64_t sample : dealer.batch(0, step)) ever.insert(sample);
  }
  EXPECT_EQ(ever.size(), 64U);
}

TEST(Dealer, TakesAShareSmallerThanABatchAsOneBatch) {
  const Dealer dealer(setup_of(10), {{.num_ranks = 2, .batch_size = 12}});
  EXPECT_EQ(dealer.batches_per_epoch(), 1);
  EXPECT_EQ(dealer.batch(0, 0).size(), 5U);
  EXPECT_EQ(dealer.batch(1, 1).size(), 5U);
}

constexpr std::int64_t kMostOfBatch = 7;

/// Every so often another number of ranks, other batches and other steps.
std::vector<WorldChange> any_changes(Random& random, std::int64_t num_steps) {
  std::vector<WorldChange> changes;
  for (std::int64_t step = 0; step < num_steps; step += random.below(12)) {
    changes.push_back({.step = step,
                       .num_ranks = 1 + static_cast<int>(random.below(9)),
                       .batch_size = 1 + random.below(kMostOfBatch),
                       .accumulate = 1 + random.below(3)});
  }
  return changes;
}

/// Goes through a run, and writes down who has had which sample in which epoch.
TEST(Dealer, GivesASampleAtMostOnceInAnEpoch) {
  constexpr std::int64_t kSteps = 200;
  for (int run = 0; run < 40; ++run) {
    SCOPED_TRACE(run);
    Random random(kSeed, static_cast<std::uint64_t>(run));
    const std::int64_t num_samples = 100 + random.below(200);
    const auto alpha = run % 2 == 0 ? std::optional<double>() : std::optional(0.2);
    const std::vector<WorldChange> changes = any_changes(random, kSteps);
    Dealer dealer(setup_of(num_samples, alpha), {changes.front()});
    std::map<std::int64_t, std::set<std::int64_t>> ledger;
    std::size_t next = 1;
    WorldChange now = changes.front();
    for (std::int64_t step = 0; step < kSteps; ++step) {
      for (; next < changes.size() && changes[next].step == step; ++next) {
        now = changes[next];
        dealer.change(now);
      }
      for (std::int64_t k = 0; k < now.num_ranks * now.accumulate; ++k) {
        const std::int64_t number = dealer.first_batch_of(step) + k / now.num_ranks;
        const std::int64_t epoch = dealer.epoch_of(number);
        for (const std::int64_t sample :
             dealer.batch(static_cast<int>(k % now.num_ranks), number)) {
          ASSERT_TRUE(ledger[epoch].insert(sample).second)
              << "sample " << sample << " twice in epoch " << epoch << ", step " << step;
          ASSERT_TRUE(sample >= 0 && sample < num_samples);
        }
      }
    }
    // All have their turn, but for incomplete batches. The last epoch is not over.
    ledger.erase(std::prev(ledger.end()));
    EXPECT_FALSE(ledger.empty());
    std::int64_t epoch = 0;
    for (const auto& [number, samples] : ledger) {
      EXPECT_EQ(number, epoch++);
      const std::int64_t unused = num_samples - std::ssize(samples);
      // Another number of ranks may find less left than a batch for each.
      EXPECT_LT(unused, 10 * (kMostOfBatch + 1));
    }
  }
}

TEST(Dealer, KnowsTheSameFromTheChangesAlone) {
  Random random(kSeed);
  const std::vector<WorldChange> changes = any_changes(random, 100);
  const Dealer::Setup setup = setup_of(150, 0.5);
  Dealer step_by_step(setup, {changes.front()});
  for (std::size_t i = 1; i < changes.size(); ++i) {
    // Asking changes nothing.
    const std::int64_t number = step_by_step.first_batch_of(changes[i - 1].step + 1);
    EXPECT_FALSE(step_by_step.batch(0, number).empty());
    step_by_step.change(changes[i]);
  }
  const Dealer at_once(setup, changes);
  const std::int64_t first = at_once.first_batch_of(changes.back().step);
  for (std::int64_t number = first; number < first + 60; ++number) {
    for (int rank = 0; rank < changes.back().num_ranks; ++rank) {
      EXPECT_EQ(at_once.batch(rank, number), step_by_step.batch(rank, number));
    }
  }
  EXPECT_EQ(changes_of(numbers_of(changes)), changes);
}

/// Four ranks have had two of their five batches; then there are three.
TEST(Dealer, DealsTheRestInEqualShares) {
  Dealer dealer(setup_of(100), {{.num_ranks = 4, .batch_size = 5}});
  std::set<std::int64_t> had;
  for (int rank = 0; rank < 4; ++rank) {
    for (const std::int64_t step : {0, 1}) {
      for (const std::int64_t sample : dealer.batch(rank, step)) had.insert(sample);
    }
  }
  EXPECT_EQ(had.size(), 40U);
  dealer.change({.step = 2, .num_ranks = 3, .batch_size = 5});
  // 60 samples are left: four batches for each of three.
  std::set<std::int64_t> rest;
  for (int rank = 0; rank < 3; ++rank) {
    for (const std::int64_t step : {2, 3, 4, 5}) {
      EXPECT_EQ(dealer.epoch_of(step), 0);
      for (const std::int64_t sample : dealer.batch(rank, step)) {
        EXPECT_FALSE(had.contains(sample));
        EXPECT_TRUE(rest.insert(sample).second);
      }
    }
  }
  EXPECT_EQ(rest.size(), 60U);
  EXPECT_EQ(dealer.epoch_of(6), 1);
  EXPECT_EQ(dealer.epoch_of(12), 2);
}

/// As before, but the three take two batches of four in a step.
TEST(Dealer, CountsTheStepsOfAnEpochThroughAChange) {
  Dealer dealer(setup_of(100), {{.num_ranks = 4, .batch_size = 5}});
  EXPECT_EQ(dealer.step_after(1), 5);
  EXPECT_EQ(dealer.step_after(3), 15);
  dealer.change({.step = 2, .num_ranks = 3, .batch_size = 4, .accumulate = 2});
  EXPECT_EQ(dealer.first_batch_of(2), 2);
  EXPECT_EQ(dealer.first_batch_of(3), 4);
  // 60 samples are left: five batches for each. A whole epoch has eight.
  EXPECT_EQ(dealer.epoch_of(6), 0);
  EXPECT_EQ(dealer.epoch_of(7), 1);
  EXPECT_EQ(dealer.step_after(1), 2 + 5 / 2);
  EXPECT_EQ(dealer.step_after(2), 2 + (5 + 8) / 2);
}

TEST(Dealer, RefusesNumbersThatNoRunHas) {
  for (const std::vector<std::int64_t>& numbers :
       std::vector<std::vector<std::int64_t>>{{1, 2, 3, 1},
                                              {0, 0, 3, 1},
                                              {0, 2, 0, 1},
                                              {0, 2, 3, 0},
                                              {0, 2, std::int64_t{1} << 40U, 1},
                                              {0, 2, 3, 1, std::int64_t{1} << 62U, 2, 3, 1},
                                              {0, 2, 3, 1, 5, 2, 3, 1, 4, 2, 3, 1}}) {
    EXPECT_THROW(changes_of(numbers), CheckpointError);
  }
}

TEST(Dealer, RefusesWhatCannotBe) {
  EXPECT_THROW(Dealer(setup_of(10), {}), std::logic_error);
  EXPECT_THROW(Dealer(setup_of(10), {{.step = 1, .num_ranks = 2}}), std::logic_error);
  EXPECT_THROW(Dealer(setup_of(10), {{.num_ranks = 2, .batch_size = 0}}), std::logic_error);
  EXPECT_THROW(Dealer(setup_of(10), {{.step = 0, .num_ranks = 11}}), ConfigError);
  Dealer dealer(setup_of(40), {{.step = 0, .num_ranks = 4}});
  dealer.change({.step = 5, .num_ranks = 3});
  EXPECT_THROW(dealer.batch(0, 4), std::logic_error);
}

}  // namespace
}  // namespace gossamer::apps

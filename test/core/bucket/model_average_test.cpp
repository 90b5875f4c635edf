#include "core/bucket/model_average.hpp"

#include "test/comm/owned_sums.hpp"
#include "test/core/algorithms/algorithm_variants.hpp"
#include "test/core/problem.hpp"
#include "test/core/ranks.hpp"
#include "test/topology/irregular.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

std::vector<double> numbers_of(int rank, std::size_t count) {
  Random random(5, static_cast<std::uint64_t>(rank));
  std::vector<double> numbers(count);
  for (double& x : numbers) x = static_cast<double>(static_cast<float>(random.uniform(-2.0, 2.0)));
  return numbers;
}

std::vector<double> mean_of(int num_ranks, std::size_t count) {
  std::vector<double> mean(count);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::vector<double> numbers = numbers_of(rank, count);
    for (std::size_t i = 0; i < count; ++i) mean[i] += numbers[i] / num_ranks;
  }
  return mean;
}

/// Memory owned by the test.
template <class T>
Buffer borrowed(std::vector<T>& values) {
  return {nullptr, block_of(std::span(values))};
}

TEST(ModelAverage, GivesEveryRankTheMean) {
  for (int n = 1; n <= 8; ++n) {
    run_ranks(n, [n](Communicator& communicator, const World& world) {
      std::vector<double> wide = numbers_of(world.rank, 37);
      std::vector<float> narrow(wide.begin(), wide.end());
      std::vector<float> none;
      InlineStream stream;
      const ModelAverage average(communicator, stream,
                                 {{borrowed(narrow)}, {borrowed(wide)}, {borrowed(none)}});
      const std::vector<double> mean = mean_of(n, 37);
      for (std::size_t i = 0; i < mean.size(); ++i) {
        EXPECT_NEAR(wide[i], mean[i], 1e-15);
        EXPECT_NEAR(narrow[i], mean[i], 1e-6);
      }
    });
  }
}

TEST(ModelAverage, TakesNothingOfARankWithoutWeight) {
  using Limits = std::numeric_limits<double>;
  run_ranks(3, [](Communicator& communicator, const World& world) {
    std::vector<double> wide = {4.0, 4.0, 4.0, 4.0};
    if (world.rank == 1) wide = {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity(), 1.0};
    std::vector<float> narrow(wide.begin(), wide.end());
    InlineStream stream;
    const ModelAverage average(communicator, stream, {{borrowed(wide)}, {borrowed(narrow)}},
                               world.rank == 1 ? 0.0 : 1.5);
    EXPECT_EQ(wide, (std::vector<double>(4, 4.0)));
    EXPECT_EQ(narrow, (std::vector<float>(4, 4.0F)));
  });
}

TEST(SharedNumbers, TakesNothingOfARankWithoutWeight) {
  for (const double wrong :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    run_ranks(3, [&](Communicator& communicator, const World& world) {
      const bool counts = world.rank != 1;
      double real = counts ? 2.0 : wrong;
      std::int64_t integer = counts ? 7 : 100;
      SharedNumbers numbers;
      numbers.number("real", real);
      numbers.number("integer", integer);
      numbers.share(communicator, counts ? 1.5 : 0.0);
      numbers.number("real", real);
      numbers.number("integer", integer);
      EXPECT_EQ(real, 2.0);
      EXPECT_EQ(integer, 7);
    });
  }
}

TEST(MeanWeight, NeedsARankThatCounts) {
  run_ranks(2, [](Communicator& communicator, const World& world) {
    EXPECT_EQ(mean_weight(communicator, world.rank == 0).weight, world.rank == 0 ? 2.0 : 0.0);
    const std::string text =
        what_of<CommError>([&] { (void)mean_weight(communicator, /*counts=*/false); });
    EXPECT_TRUE(contains(text, "no rank that is left has the model")) << text;
  });
}

TEST(ModelAverage, IsBitIdenticalOnAllRanks) {
  std::vector<std::vector<float>> results(5);
  run_ranks(5, [&](Communicator& communicator, const World& world) {
    const std::vector<double> numbers = numbers_of(world.rank, 1000);
    std::vector<float>& mine = results[static_cast<std::size_t>(world.rank)];
    mine.assign(numbers.begin(), numbers.end());
    InlineStream stream;
    const ModelAverage average(communicator, stream, {{borrowed(mine)}});
  });
  for (const std::vector<float>& result : results) EXPECT_EQ(result, results.front());
}

TEST(ModelAverage, MeasuresTheDistanceToTheMean) {
  for (const int n : {1, 2, 5}) {
    run_ranks(n, [n](Communicator& communicator, const World& world) {
      std::vector<double> first = numbers_of(world.rank, 20);
      std::vector<double> second = numbers_of(world.rank, 30);
      double squares = 0.0;
      for (const auto* x : {&first, &second}) {
        const std::vector<double> mean = mean_of(n, x->size());
        for (std::size_t i = 0; i < mean.size(); ++i) squares += std::pow((*x)[i] - mean[i], 2);
      }
      InlineStream stream;
      const ModelAverage average(communicator, stream, {{borrowed(first)}, {borrowed(second)}});
      EXPECT_NEAR(average.distance(), std::sqrt(squares), 1e-13);
    });
  }
}

TEST(ModelAverage, RestoresBitForBit) {
  run_ranks(3, [](Communicator& communicator, const World& world) {
    using Limits = std::numeric_limits<float>;
    std::vector<float> x = {0.1F,
                            -0.0F,
                            Limits::denorm_min(),
                            Limits::max(),
                            Limits::quiet_NaN(),
                            static_cast<float>(world.rank)};
    const std::vector<float> own = x;
    InlineStream stream;
    ModelAverage average(communicator, stream, {{borrowed(x)}});
    EXPECT_EQ(x[5], 1.0F);
    x.assign(x.size(), 7.0F);
    average.restore();
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(x[i]), std::bit_cast<std::uint32_t>(own[i])) << i;
    }
  });
}

TEST(ModelAverage, TakesRoundedCopiesAlong) {
  run_ranks(3, [](Communicator& communicator, const World& world) {
    std::vector<float> x = {1.0F + static_cast<float>(world.rank), 0.1F};
    std::vector<BFloat16> rounded(2);
    InlineStream stream;
    ModelAverage average(communicator, stream, {{borrowed(x), borrowed(rounded)}});
    EXPECT_EQ(widened(rounded[0]), 2.0F);
    EXPECT_EQ(rounded[1], rounded_to_bfloat16(0.1F));
    average.restore();
    EXPECT_EQ(widened(rounded[0]), 1.0F + static_cast<float>(world.rank));
  });
}

TEST(ModelAverage, DoesNotDisturbTraining) {
  // Averaging and restoring between steps, and before the first, must not change the training.
  for (const std::string& algorithm : algorithms_in_step()) {
    Problem problem;
    problem.num_ranks = 4;
    problem.algorithm = algorithm;
    problem.topology =
        make_topology(topology_for(algorithm, "one-peer-exp"), {.size = 4, .node_size = 2});
    problem.dtype = DType::kFloat32;
    Trajectory averaging = empty_trajectory(problem);
    run_ranks(4, [&](Communicator& communicator, const World& world) {
      ToyModel model = model_of(problem, communicator);
      for (int step = 0; step < problem.num_steps; ++step) {
        model.pipeline().drain();
        InlineStream stream;
        ModelAverage average(communicator, stream, model.pipeline().memory());
        average.restore();
        train_step(problem, model, world.rank, step);
        averaging[static_cast<std::size_t>(step)][static_cast<std::size_t>(world.rank)] =
            model.values();
      }
      model.pipeline().drain();
    });
    EXPECT_EQ(averaging, run_pipeline(problem)) << algorithm;
  }
}

TEST(ModelAverage, PreservesTheMeanOfPushSum) {
  Problem problem;
  problem.num_ranks = 5;
  problem.lr = 0.0;
  problem.topology = std::make_shared<const IrregularDigraph>(5);
  std::vector<double> start(problem.num_values());
  for (int rank = 0; rank < 5; ++rank) {
    const std::vector<double> own = start_of(problem, rank);
    for (std::size_t e = 0; e < own.size(); ++e) start[e] += own[e] / 5;
  }
  for (const int num_steps : {0, 1, 2, 5}) {
    SCOPED_TRACE(num_steps);
    run_ranks(5, [&](Communicator& communicator, const World& world) {
      ToyModel model = model_of(problem, communicator);
      for (int step = 0; step < num_steps; ++step) train_step(problem, model, world.rank, step);
      Pipeline& pipeline = model.pipeline();
      pipeline.drain();
      const auto average = [&](double weight) {
        InlineStream stream;
        ModelAverage mean(communicator, stream, pipeline.memory(), weight);
        double most = 0.0;
        for (std::size_t e = 0; e < start.size(); ++e) {
          most = std::max(most, std::abs(model.values()[e] - start[e]));
        }
        mean.restore();
        return most;
      };
      EXPECT_LE(average(pipeline.model_weight()), 1e-12);
      if (num_steps == 2) {
        EXPECT_GT(average(1.0), 1e-3) << "weights matter";
      }
    });
  }
}

TEST(SumOverRanks, AddsEveryNumber) {
  for (int n = 1; n <= 6; ++n) {
    run_ranks(n, [n](Communicator& communicator, const World& world) {
      const auto sums = sum_over_ranks(communicator, {1.0, static_cast<double>(world.rank), -0.5});
      EXPECT_EQ(sums, (std::vector<double>{1.0 * n, n * (n - 1) / 2.0, -0.5 * n}));
      EXPECT_TRUE(sum_over_ranks(communicator, {}).empty());
      OwnedSums owned(communicator);
      static_cast<void>(sum_over_ranks(owned, {1.0}));
    });
  }
}

TEST(GatherNumbers, GivesTheNumbersInRankOrder) {
  for (int n = 1; n <= 6; ++n) {
    run_ranks(n, [n](Communicator& communicator, const World& world) {
      std::vector<double> expected;
      for (int rank = 0; rank < n; ++rank) expected.push_back(0.1 * rank - 1.0);
      EXPECT_EQ(gather_numbers(communicator, 0.1 * world.rank - 1.0), expected);
    });
  }
}

}  // namespace
}  // namespace gossamer

// Simulations against theory.

#include "apps/lab/simulate/simulation.hpp"

#include "test/base/thrown.hpp"
#include "test/support/long_runs.hpp"
#include "test/topology/irregular.hpp"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "topology/spectrum.hpp"

namespace gossamer::apps {
namespace {

SimulationConfig config_of(const std::string& yaml) {
  return read_simulation(Options::parse(yaml));
}

SimulationResult run(const std::string& yaml, int num_threads = 1) {
  return simulate(config_of(yaml), num_threads);
}

std::string refusal(const std::string& yaml) {
  return what_of<ConfigError>([&] { (void)config_of(yaml); });
}

TEST(Consensus, ShrinksPerPeriodByTheSpectralRadius) {
  for (const char* topology :
       {"ring", "torus", "grid", "static-ring", "static-exp", "star", "directed-one-peer-exp",
        "{name: hierarchical, leaders: ring}", "{every: {base: ring, period: 3}}"}) {
    const std::string yaml = concat(
        "world_size: 12, local_world_size: 2, rounds: 4000, dim: 16, "
        "topology: ",
        topology);
    const SimulationConfig config = config_of(yaml);
    const SimulationResult result = simulate(config, 1);
    const double radius = 1.0 - spectral_gap(*config.topology, 12).value();
    ASSERT_TRUE(result.measured_factor.has_value()) << topology;
    EXPECT_NEAR(*result.measured_factor, radius, 0.01 * radius) << topology;
    EXPECT_LT(result.mean_drift, 1e-13) << topology;
  }
}

TEST(Consensus, IsExactAfterAPeriodWhereItShouldBe) {
  for (const char* world :
       {"world_size: 64, topology: one-peer-exp", "world_size: 100, topology: base-k",
        "world_size: 33, topology: {name: base-k, k: 2}", "world_size: 9, topology: complete",
        "world_size: 32, topology: directed-one-peer-exp",
        "world_size: 12, local_world_size: 3, topology: alternating-exp-ring"}) {
    const SimulationConfig config = config_of(concat(world, ", rounds: 40, dim: 4"));
    EXPECT_EQ(simulate(config, 1).exact_after, config.topology->period()) << world;
  }
}

TEST(Consensus, TakesNoLongerToAThousandthThanTheWorstStart) {
  for (const char* topology : {"ring", "torus", "random-matching", "static-ring", "star"}) {
    const SimulationConfig config =
        config_of(concat("world_size: 16, rounds: 2000, dim: 8, topology: ", topology));
    const auto bound = rounds_to(*config.topology, 16);
    const SimulationResult result = simulate(config, 1);
    ASSERT_TRUE(result.rounds_to_thousandth.has_value()) << topology;
    EXPECT_LE(*result.rounds_to_thousandth, bound->rounds) << topology;
    EXPECT_GT(*result.rounds_to_thousandth, bound->rounds / 3) << topology;
  }
}

void expect_same(const SimulationResult& a, const SimulationResult& b) {
  ASSERT_EQ(a.points.size(), b.points.size());
  for (std::size_t i = 0; i < a.points.size(); ++i) {
    EXPECT_EQ(a.points[i].round, b.points[i].round);
    EXPECT_EQ(a.points[i].consensus_distance, b.points[i].consensus_distance);
    EXPECT_EQ(a.points[i].excess_loss, b.points[i].excess_loss);
    EXPECT_EQ(a.points[i].distance_to_optimum, b.points[i].distance_to_optimum);
  }
}

TEST(Simulation, DoesNotDependOnTheNumberOfThreads) {
  for (const char* yaml :
       {"world_size: 37, rounds: 50, dim: 19, topology: random-matching",
        "world_size: 24, local_world_size: 4, rounds: 50, topology: {name: hierarchical}",
        "kind: sgd, world_size: 21, rounds: 40, dim: 6, topology: static-exp, "
        "optimizer: {name: accum_adamw, lr: 0.01}",
        "kind: sgd, world_size: 10, rounds: 40, dim: 6, topology: complete, problem: logistic, "
        "optimizer: {name: adam, lr: 0.01}"}) {
    const SimulationResult one = run(yaml, 1);
    for (const int threads : {2, 3, 7}) expect_same(one, run(yaml, threads));
  }
}

class DecentralizedSgd : public LongRuns {};

TEST_F(DecentralizedSgd, StaysApartInProportionToLearningRateAndHeterogeneity) {
  const auto distance = [](double lr, double heterogeneity) {
    return run(concat("kind: sgd, world_size: 8, rounds: 4000, dim: 4, topology: ring, "
                      "optimizer: {name: sgd, lr: ",
                      lr,
                      "}, problem: {name: quadratic, noise: 0, "
                      "heterogeneity: ",
                      heterogeneity, "}"))
        .steady.consensus_distance;
  };
  const double base = distance(0.002, 1.0);
  EXPECT_NEAR(distance(0.004, 1.0) / base, 2.0, 0.03);
  EXPECT_NEAR(distance(0.002, 3.0) / base, 3.0, 1e-6);
}

TEST_F(DecentralizedSgd, FindsTheOptimumWhereRanksAgreeAndNothingIsNoisy) {
  for (const char* optimizer :
       {"{name: sgd, lr: 0.1}", "{name: adam, lr: 0.01}", "{name: accum_adamw, lr: 0.01}"}) {
    for (const char* problem : {"{name: quadratic, heterogeneity: 0, noise: 0}",
                                "{name: logistic, heterogeneity: 0, batch_size: 0}"}) {
      const SimulationResult result = run(concat(
          "kind: sgd, world_size: 4, rounds: 6000, dim: 5, topology: ring, optimizer: ", optimizer,
          ", problem: ", problem));
      // The ranks of the logistic problem agree in distribution; their points are their own.
      const double close = std::string_view(problem).starts_with("{name: quadratic") ? 1e-3 : 5e-3;
      EXPECT_LT(result.steady.excess_loss, close) << optimizer << ", " << problem;
      EXPECT_GE(result.steady.excess_loss, -1e-12) << optimizer << ", " << problem;
      EXPECT_LT(result.steady.excess_loss, 0.05 * result.points.front().excess_loss)
          << optimizer << ", " << problem;
    }
  }
}

// Out-degrees differ here. Without push-sum weights in the update the ranks would meet at the
// optimum of those that are heard most, at an excess loss of some 0.1.
TEST_F(DecentralizedSgd, OfAnIrregularDirectedGraphEndsNearTheCommonOptimum) {
  SimulationConfig config = config_of(
      "kind: sgd, world_size: 8, rounds: 20000, dim: 4, optimizer: {name: sgd, lr: "
      "0.005}, problem: {name: quadratic, noise: 0, heterogeneity: 1}");
  config.topology = std::make_shared<IrregularDigraph>(8);
  EXPECT_LT(simulate(config, 1).steady.excess_loss, 1e-4);
}

TEST(Simulation, KeepsAllEarlyPointsAndTheLastOne) {
  const SimulationResult result = run("world_size: 4, rounds: 5003, dim: 2");
  EXPECT_EQ(result.points.at(100).round, 100);
  EXPECT_EQ(result.points.back().round, 5003);
  EXPECT_LT(result.points.size(), 400U);
}

TEST(Simulation, RefusesWhatCannotBe) {
  EXPECT_TRUE(contains(refusal("world_size: 0"), "world_size: 0 is out of range"));
  EXPECT_TRUE(contains(refusal("world_size: -4"), "world_size: -4 is out of range"));
  EXPECT_TRUE(contains(refusal("rounds: 5"), "world_size: is missing"));
  EXPECT_TRUE(contains(refusal("world_size: 6, local_world_size: 4"), "does not divide"));
  EXPECT_TRUE(contains(refusal("world_size: 6, topology: one-peer-exp"), "cannot be built"));
  EXPECT_TRUE(contains(refusal("world_size: 6, kind: sdg"), "did you mean sgd?"));
  EXPECT_TRUE(contains(refusal("world_size: 6, optimizer: adam"), "optimizer: unknown key"));
  EXPECT_TRUE(contains(refusal("world_size: 1000000, dim: 100000"), "allowed: up to"));
  EXPECT_TRUE(contains(
      refusal("kind: sgd, world_size: 100000, dim: 2, algorithm: choco, topology: complete"),
      "world_size: 100000 ranks with 99999 neighbours each are too many links"));
  EXPECT_TRUE(
      contains(refusal("kind: sgd, world_size: 4, dim: 2, algorithm: choco, topology: ring"),
               "algorithm: the algorithm choco needs a topology with a single round"));
  EXPECT_TRUE(contains(refusal("world_size: 4, codec: int8, topology: static-exp"),
                       "codec: the codec int8 needs a topology whose messages go in both"));
  EXPECT_TRUE(contains(refusal("kind: sgd, world_size: 2, dim: 5000, problem: logistic"),
                       "matrix of dim x dim"));
}

}  // namespace
}  // namespace gossamer::apps

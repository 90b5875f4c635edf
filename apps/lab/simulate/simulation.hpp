#pragma once
// `gossamer simulate`: what a topology does to averages and to training, for thousands of ranks.
//
// A simulation is read from a section such as
//
//   kind: sgd                  # consensus: mixing alone, from random vectors
//   world_size: 64
//   local_world_size: 8        # 0: all on one node
//   rounds: 1000               # mixing rounds, or steps
//   dim: 64                    # parameters of a rank
//   seed: 0
//   topology: {name: ring}
//   algorithm: gossip                                 # sgd only, as in training
//   optimizer: {name: sgd, lr: 0.05}                  # sgd only, as in training
//   problem: {name: quadratic, heterogeneity: 1.0}    # sgd only, see problems.hpp

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/lab/simulate/problems.hpp"
#include "base/options.hpp"
#include "core/algorithm.hpp"
#include "optim/optimizer.hpp"
#include "topology/topology.hpp"

namespace gossamer::apps {

struct SimulationConfig {
  /// Training steps; otherwise consensus alone.
  bool trains = false;
  World world = {};
  std::int64_t rounds = 0;
  std::int64_t dim = 0;
  std::uint64_t seed = 0;
  std::shared_ptr<const Topology> topology = {};
  AlgorithmChoice algorithm = {};
  std::shared_ptr<const Optimizer> optimizer = {};
  double lr = 0.0;
  double weight_decay = 0.0;
  std::shared_ptr<const SimulatedProblem> problem = {};
};

/// Throws ConfigError, also for what needs more than 16 GB.
SimulationConfig read_simulation(const Options& options);

struct SimulationPoint {
  /// Rounds, or steps, so far.
  std::int64_t round = 0;
  /// sqrt of the mean over ranks of ||x_i - mean||^2.
  double consensus_distance = 0.0;
  /// Training: loss of the mean model above the least there is, and sqrt of the mean over ranks of
  /// ||x_i - optimum||^2.
  double excess_loss = 0.0;
  double distance_to_optimum = 0.0;
};

struct SimulationResult {
  /// The start, then every round of the first 100, then ever fewer; the last round is among them.
  std::vector<SimulationPoint> points;
  /// How far the mean has moved under mixing alone; rounding, and nothing else.
  double mean_drift = 0.0;
  /// Mixing alone: the factor per period (without one: per round) by which the distance from the
  /// mean shrank over the second half of the rounds in which it was more than rounding; nothing
  /// where these are too few.
  std::optional<double> measured_factor;
  /// Rounds after which the distance is below 1e-12 and 1e-3 of the first one.
  std::optional<std::int64_t> exact_after;
  std::optional<std::int64_t> rounds_to_thousandth;
  /// Training: the mean of a point's figures over the last quarter of the steps.
  SimulationPoint steady = {};
};

SimulationResult simulate(const SimulationConfig& config, int num_threads);

}  // namespace gossamer::apps

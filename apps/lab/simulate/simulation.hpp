#pragma once
// `gossamer simulate` shows how a topology affects averages and training, for thousands of ranks.
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
//   codec: fp32                # fp32, bf16, fp16, int8, int4, topk: what the ranks send
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
#include "core/algorithms/algorithm.hpp"
#include "core/algorithms/plug_ins.hpp"
#include "optim/optimizer.hpp"
#include "topology/topology.hpp"

namespace gossamer::apps {

struct SimulationConfig {
  /// True: simulate training steps. False: simulate mixing alone (consensus).
  bool trains = false;
  World world = {};
  std::int64_t rounds = 0;
  std::int64_t dim = 0;
  std::uint64_t seed = 0;
  std::shared_ptr<const Topology> topology = {};
  /// Null: the ranks send their values as they are.
  const Codec* codec = nullptr;
  AlgorithmChoice algorithm = {};
  std::shared_ptr<const Optimizer> optimizer = {};
  double lr = 0.0;
  double weight_decay = 0.0;
  std::shared_ptr<const SimulatedProblem> problem = {};
};

/// Throws ConfigError, also for a simulation that needs more than 16 GB.
SimulationConfig read_simulation(const Options& options, const PlugIns& own = {});

struct SimulationPoint {
  /// Rounds or steps done so far.
  std::int64_t round = 0;
  /// The square root of the mean over ranks of ||x_i - mean||^2.
  double consensus_distance = 0.0;
  /// Training only. excess_loss: the loss of the mean model minus the least possible loss.
  /// distance_to_optimum: the square root of the mean over ranks of ||x_i - optimum||^2.
  double excess_loss = 0.0;
  double distance_to_optimum = 0.0;
};

struct SimulationResult {
  /// The points of the start, of every round up to round 100, and then of ever fewer rounds: from
  /// round 2500 on of every 50th. The last round is always included.
  std::vector<SimulationPoint> points;
  /// How far the mean has moved under mixing alone. Only rounding can move it.
  double mean_drift = 0.0;
  /// Mixing alone: the factor by which the distance from the mean shrinks per period, or per round
  /// if there is no period. Measured over the second half of the rounds in which the distance was
  /// more than rounding; nothing where these rounds are too few.
  std::optional<double> measured_factor;
  /// Rounds until the distance is below 1e-12 (exact_after) or 1e-3 (rounds_to_thousandth) of the
  /// first one.
  std::optional<std::int64_t> exact_after;
  std::optional<std::int64_t> rounds_to_thousandth;
  /// Training: the mean of each figure over the last quarter of the steps.
  SimulationPoint steady = {};
};

/// `num_threads` share the work; 0: as many as there are cores.
SimulationResult simulate(const SimulationConfig& config, int num_threads);

}  // namespace gossamer::apps

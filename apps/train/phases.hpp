#pragma once
// The phases of a run: which algorithm and topology it uses from which step on, and whether the
// measured consensus distance chooses between two topologies.
//
// Consensus control follows Kong et al., "Consensus Control for Decentralized Deep Learning", ICML
// 2021. As long as the ranks are closer to their mean than a critical distance, decentralised
// training learns as fast as centralised training. So it may send less. The critical distance is
// proportional to the learning rate. Here the measured distance is relative,
//
//   distance = sqrt(mean over ranks of |x_i - mean x|^2) / |mean x|,
//
// and is compared with target * lr / optimizer.lr, where lr is the present learning rate.
//
// Errors: ConfigError with the place in the file. Not thread safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "core/algorithms/plug_ins.hpp"
#include "core/step/algorithm_switch.hpp"

namespace gossamer::apps {

struct ConsensusControl {
  /// The relative distance that is allowed at the full learning rate.
  double target = 0.0;
  /// The sparse topology is taken when the distance is less than (1 - hysteresis) * target.
  double hysteresis = 0.0;
  /// Steps between two measurements.
  std::int64_t every = 0;
  /// The topology with less communication, for a distance that is small enough.
  std::shared_ptr<const Topology> sparse = {};

  /// Whether to use the sparse topology, after the one in `is_sparse`. `lr_factor`: the learning
  /// rate over optimizer.lr.
  [[nodiscard]] bool chooses_sparse(bool is_sparse, double distance, double lr_factor) const;
};

struct RunPhase {
  /// The number of steps before it.
  std::int64_t first_step = 0;
  /// The algorithm, the topology, and whether the ranks are averaged at the beginning.
  AlgorithmSwitch method = {};
  std::optional<ConsensusControl> control = {};

  /// The method while control uses the sparse topology, or else the dense one.
  [[nodiscard]] AlgorithmSwitch method_with(bool is_sparse) const;
};

/// Reads `algorithm` and `topology`. Returns one phase, or the phases of `algorithm.phases`; the
/// first one begins with step 0. `fallback`: the name of the topology that takes the place of one
/// that does not fit the world; empty: that is an error.
std::vector<RunPhase> read_phases(const Options& root, const World& world, const PlugIns& own = {},
                                  const std::string& fallback = "");

/// Returns a text such as `gossip on ring`.
std::string describe(const AlgorithmSwitch& method);
/// Returns a text such as `allreduce, gossip on ring from step 100 on`.
std::string describe(const std::vector<RunPhase>& phases);

}  // namespace gossamer::apps

#pragma once
// A switch: from some step on, a run goes on with another algorithm or topology. Pipeline and
// DecentralizedDataParallel make it between two steps (switch_to()).
//
// Parameters, the states of the optimizer, numbers of steps and updates, and the learning rate
// stay. The new algorithm starts as in a new run: its states are new, its first step mixes in
// nothing, it counts its rounds from 0, and push-sum weights are 1. What the old algorithm has
// under way is dropped: the last blocks of gossip, and with `delay: 1` the last gradients of
// allreduce.
//
// A switch may average the ranks. Then all ranks go on from the mean of their parameters and of
// their optimizers' states, and from the largest of their counts of updates. An algorithm that
// needs equal models is always given equal ranks so: with optimizers of different states their
// models would part again.
//
// In a directed topology and under async_gossip, mixing preserves a weighted mean of the ranks'
// parameters. A switch that averages uses these weights (Pipeline::model_weight()). A switch that
// does not average leaves the parameters as they are, and the new algorithm preserves their plain
// mean. The two means differ only as far as the ranks do.

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/types.hpp"
#include "comm/communicator.hpp"
#include "core/algorithms/algorithm.hpp"
#include "topology/topology.hpp"

namespace gossamer {

struct AlgorithmSwitch {
  AlgorithmChoice algorithm = {};
  /// The topology; null if the algorithm needs none.
  std::shared_ptr<const Topology> topology = {};
  /// True: all ranks go on from the mean of their models and optimizers' states.
  bool average = false;

  /// Whether the ranks are averaged. They always are if the algorithm needs equal models.
  [[nodiscard]] bool averages() const { return average || algorithm.entry().needs_equal_models(); }
  /// The options of a run after this switch.
  [[nodiscard]] ExchangeOptions after(ExchangeOptions before) const {
    before.algorithm = algorithm;
    before.topology = topology;
    return before;
  }
};

/// A topology that `algorithm` can follow in a world of any size: the topology of this name, or
/// static-ring for algorithms that need the same mixing in every round.
std::shared_ptr<const Topology> fallback_topology(const AlgorithmChoice& algorithm,
                                                  std::string_view name, const World& world);

/// Collective. Checks that all ranks make the same switch after the same step. Otherwise every rank
/// throws ConfigError, which quotes the first difference.
void agree_on_switch(Communicator& communicator, const AlgorithmSwitch& to, std::int64_t step);

}  // namespace gossamer

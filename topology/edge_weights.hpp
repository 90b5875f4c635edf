#pragma once
// Changes the weights of a topology's edges, round by round. decent-dp has two hooks for this,
// pre_average_hook(edge, weight) and set_adaptive_factor(a); here both are a topology around
// another topology, so pipelines, simulations and reports need to know nothing about it.
//
//   options.topology = with_edge_weights(make_topology("ring", world), adaptive_factor(0.5));
//
// Invariants: who meets whom stays. All members of an edge use the same weight, so the mean of all
// ranks stays, whatever the weights are. Therefore the function must give the same weight on all
// ranks: it may look at the edge and the round, and not at the rank that asks.
//
// Thread safety: such a topology is as thread safe as the function of weights.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "topology/topology.hpp"

namespace gossamer {

/// The weight of an edge of two ranks or more in the k-th round: what every member keeps of its own
/// value, from 0 to 1. `edge` has the weight that the topology gives it; in rounds of two levels it
/// names nodes. Must be a function of its arguments, the same on all ranks.
using EdgeWeight = std::function<double(const Edge& edge, std::int64_t k)>;

/// The topology with the weights that `weight` says. It has no period, because weights may change
/// from round to round. round() throws ConfigError for a weight that is no number from 0 to 1, and
/// for rounds of arcs, which have a weight for each message. Throws ConfigError without a topology
/// or a function.
std::unique_ptr<Topology> with_edge_weights(std::shared_ptr<const Topology> topology,
                                            EdgeWeight weight);

/// w' = 1 - a (1 - w): the ranks go the share a of the way to the mix. Throws ConfigError unless a
/// is a number from 0 to 1.
EdgeWeight adaptive_factor(double a);

/// The factors of a run that changes them. Changes are for rounds to come, so a round that has
/// begun keeps its weights. Not thread safe.
class ChangingFactor {
 public:
  /// The factor is `a` from round 0 on. Throws ConfigError as adaptive_factor(a) does.
  explicit ChangingFactor(double a) { change(a, 0); }
  /// Sets the factor to `a` from the k-th round on. Throws ConfigError as adaptive_factor(a) does.
  void change(double a, std::int64_t k);
  /// The factor of the k-th round, k >= 0.
  [[nodiscard]] double at(std::int64_t k) const;

 private:
  /// Each factor, by the first round that has it.
  std::map<std::int64_t, double> factors_;
};

/// w' = 1 - a (1 - w), where a is the factor of the round.
EdgeWeight adaptive_factor(std::shared_ptr<const ChangingFactor> factor);

}  // namespace gossamer

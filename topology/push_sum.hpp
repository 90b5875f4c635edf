#pragma once
// Push-sum: right averages although the rows of a mixing matrix do not sum to one.
//
// In a directed graph a rank can choose the weights of the values that it sends and keeps so that
// they sum to one. It cannot choose the weights of the values that it receives. Mixing x <- A x
// then keeps the sum over all ranks, but ranks that receive large weights end above the mean, and
// the other ranks below. Push-sum gives every rank a weight s, which is 1 at first, and mixes the
// weights in the same way, s <- A s. Then z = x / s converges to the mean on every rank. Sources:
// Kempe, Dobra and Gehrke, "Gossip-based computation of aggregate information", FOCS 2003; Assran
// et al., "Stochastic gradient push for distributed deep learning", ICML 2019.
//
// gossamer's ranks hold z, the model that computes, and not x. A and s are known to all ranks, so
//
//   z_i(k+1) = sum over j of (A_ij s_j(k) / s_i(k+1)) z_j(k)
//
// is a round with weights of its own, whose rows sum to one. The exchange still sends straight from
// the model. An update u of x is an update u / s of z.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "topology/topology.hpp"

namespace gossamer {

class PushSum {
 public:
  explicit PushSum(int world_size) : weights_(static_cast<std::size_t>(world_size), 1.0) {}
  /// Goes on from weights() of an earlier time.
  explicit PushSum(std::vector<double> weights) : weights_(std::move(weights)) {}

  /// The weight s of every rank before the next round.
  [[nodiscard]] const std::vector<double>& weights() const { return weights_; }
  /// Takes the weights through one round, s <- A s, and returns the round that mixes z. Throws
  /// ConfigError for a round of two levels in which the ranks of a node have different weights.
  Round advance(const Round& round);
  /// Goes through one round without making the round that mixes z; for looking ahead. Throws as
  /// advance() does.
  void skip(const Round& round);

 private:
  /// The effect of one round on the weights; of a round of two levels, on the weights of nodes.
  struct Step {
    std::vector<double> before;
    std::vector<double> after;
    /// Edges among members of one weight stay edges, which move less; the others become arcs.
    std::vector<Edge> edges;
    std::vector<Arc> arcs;
  };
  [[nodiscard]] Step step(const Round& round) const;
  void take(const Step& step, int node_size);

  std::vector<double> weights_;
};

/// The k-th round, for the values that ranks hold: in a directed topology the round that
/// PushSum::advance() returns, so call it for every k in order; otherwise the round itself. Throws
/// std::logic_error for a round that breaks a rule of verify.hpp.
Round next_round(const Topology& topology, std::int64_t k, PushSum& push_sum);

}  // namespace gossamer

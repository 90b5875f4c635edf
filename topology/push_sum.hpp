#pragma once
// Averages that are right although the rows of a mixing matrix do not sum to one.
//
// In a directed graph a rank can see to it that what it gives away and keeps sums to one, but not
// that what it hears does. x <- A x then keeps the sum over all ranks, but pulls ranks that hear
// much above the mean and the others below. Push-sum (Kempe, Dobra and Gehrke, "Gossip-based
// computation of aggregate information", FOCS 2003; Assran et al., "Stochastic gradient push for
// distributed deep learning", ICML 2019) lets a weight s, 1 at first, go the same way, s <- A s;
// then z = x / s converges to the mean on every rank.
//
// gossamer's ranks hold z, the model that computes, and not x: with A and s known to everybody,
//
//   z_i(k+1) = sum over j of (A_ij s_j(k) / s_i(k+1)) z_j(k)
//
// is a round with weights of its own, whose rows sum to one, and the exchange still sends straight
// from the model. An update u of x is u / s of z.

#include <cstdint>
#include <vector>

#include "topology/topology.hpp"

namespace gossamer {

class PushSum {
 public:
  explicit PushSum(int world_size) : weights_(static_cast<std::size_t>(world_size), 1.0) {}

  /// s of every rank before the next round.
  [[nodiscard]] const std::vector<double>& weights() const { return weights_; }
  /// Goes through one round, s <- A s, and returns it as it mixes z. Throws ConfigError for a round
  /// of two levels in which the ranks of a node have different weights.
  Round advance(const Round& round);

 private:
  std::vector<double> weights_;
};

/// The k-th round as it mixes what ranks hold: of a directed topology as PushSum gives it, which
/// goes through the rounds in their order; otherwise as it is. Throws std::logic_error for a round
/// that breaks a rule of verify.hpp.
Round next_round(const Topology& topology, std::int64_t k, PushSum& push_sum);

}  // namespace gossamer

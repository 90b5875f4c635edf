#pragma once
// How fast a topology averages. P is the product of the rounds of one period, J the averaging
// matrix. M(k) = W(k-1) ... W(0) is the product of the first k rounds, with the weights of push-sum
// for directed topologies.
//
// For up to 128 ranks (for norms: up to 64) the functions form dense matrices. Beyond that they
// multiply sparse rounds with vectors, in memory proportional to the ranks of one period's rounds.
// Where even this memory is too much (a ring of 100,001 ranks has 100,001 rounds), the functions
// return nothing.

#include <cstdint>
#include <optional>

#include "topology/topology.hpp"

namespace gossamer {

/// 1 - rho(P - J), rho the spectral radius. Nothing for topologies without a period.
std::optional<double> spectral_gap(const Topology& topology, int world_size);

/// The smallest k for which M(k) averages exactly (to 1e-12), looked for within `max_rounds`, or
/// within one period when that is shorter; nothing when there is none.
std::optional<std::int64_t> exact_after(const Topology& topology, int world_size,
                                        std::int64_t max_rounds = 256);

/// A number of rounds. An estimate computes 2^20 / n rounds and continues their decay at the rate
/// of the spectrum. With more than 16,384 ranks the estimate is the number of rounds after which
/// the mean is exact.
struct RoundCount {
  std::int64_t rounds = 0;
  bool estimated = false;
};

/// The smallest k with ||M(k) - J||_2 <= factor: whatever the ranks start from, their distance from
/// the mean, sqrt(sum_i ||x_i - mean||^2), has shrunk by that factor. Nothing when it never does.
std::optional<RoundCount> rounds_to(const Topology& topology, int world_size, double factor = 1e-3);

/// ||M(k) - J||_2.
double distance_factor(const Topology& topology, int world_size, std::int64_t num_rounds);

/// All figures together; shared parts are computed once.
struct ConsensusSpeed {
  std::optional<double> spectral_gap;
  std::optional<std::int64_t> exact_after;
  std::optional<RoundCount> rounds_to_thousandth;
  /// The factor per round by which the distance from the mean shrinks in the long run: rho(P -
  /// J)^(1 / period). For topologies without a period it is ||M(k) - J||_2^(1 / k) at the k that
  /// rounds_to() finds. Nothing where these give nothing.
  std::optional<double> consensus_rate;
};
ConsensusSpeed consensus_speed(const Topology& topology, int world_size);

}  // namespace gossamer

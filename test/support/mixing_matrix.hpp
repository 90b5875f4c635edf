#pragma once
// The mixing matrices of rounds, which training never forms.

#include <cstdint>

#include "topology/mixing.hpp"
#include "topology/topology.hpp"

namespace gossamer {

/// The mixing matrix W of a round, [world_size, world_size]: row i has the weights of rank i.
/// Throws std::logic_error for a round that breaks a rule of verify.hpp.
inline Eigen::MatrixXd mixing_matrix(const Round& round, int world_size, bool directed = false) {
  check_round(round, world_size, directed);
  RankRows matrix = RankRows::Identity(world_size, world_size);
  MixingOperator(round).apply(matrix);
  return matrix;
}

/// The product W(k-1) ... W(1) W(0) of the first k = `num_rounds` rounds.
inline Eigen::MatrixXd period_product(const Topology& topology, int world_size,
                                      std::int64_t num_rounds) {
  Eigen::MatrixXd product = Eigen::MatrixXd::Identity(world_size, world_size);
  for (std::int64_t k = 0; k < num_rounds; ++k) {
    product = mixing_matrix(topology.round(k), world_size, topology.directed()) * product;
  }
  return product;
}

}  // namespace gossamer

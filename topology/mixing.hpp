#pragma once
// Topologies as matrices: x <- W x. Analysis only; training never forms a matrix.

#include <cstdint>
#include <optional>

#include <Eigen/Core>

#include "gossamer/topology/topology.hpp"

namespace gossamer {

/// The mixing matrix W of a round, [world_size, world_size], row i = the weights of rank i.
Eigen::MatrixXd mixing_matrix(const Round& round, int world_size);

/// W(k-1) ... W(1) W(0): what `num_rounds` rounds do together.
Eigen::MatrixXd period_product(const Topology& topology, int world_size, std::int64_t num_rounds);

/// 1 - rho(P - J): P the product of one period, J the averaging matrix, rho the spectral radius.
/// Nothing for topologies without a period.
std::optional<double> spectral_gap(const Topology& topology, int world_size);

/// The smallest k such that rounds 0..k-1 together average exactly (to 1e-12), looked for within
/// `max_rounds`, or within one period when that is shorter; nothing when there is none.
std::optional<std::int64_t> exact_after(const Topology& topology, int world_size,
                                        std::int64_t max_rounds = 64);

}  // namespace gossamer

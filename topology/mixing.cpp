#include "gossamer/topology/mixing.hpp"

#include <algorithm>
#include <stdexcept>

#include <Eigen/Eigenvalues>

namespace gossamer {
namespace {

// Rounding leaves about 1e-16 per product; what lies below these is meant to be 0.
constexpr double kExactTolerance = 1e-12;
constexpr double kSymmetryTolerance = 1e-14;

/// matrix <- W matrix, row by row: O(n^2) per round where a product of matrices is O(n^3), which
/// decides whether a ring of some hundred ranks can be analysed at all.
void apply_edge(const Edge& edge, Eigen::MatrixXd& matrix) {
  if (edge.ranks.size() < 2) return;
  const double share = (1.0 - edge.weight) / static_cast<double>(edge.ranks.size() - 1);
  Eigen::RowVectorXd sum = Eigen::RowVectorXd::Zero(matrix.cols());
  for (const int rank : edge.ranks) sum += matrix.row(rank);
  for (const int rank : edge.ranks) {
    matrix.row(rank) = (edge.weight - share) * matrix.row(rank) + share * sum;
  }
}

void apply_round(const Round& round, Eigen::MatrixXd& matrix) {
  check_round(round, static_cast<int>(matrix.rows()));
  for (const Edge& edge : round.edges) apply_edge(edge, matrix);
}

Eigen::MatrixXd averaging_matrix(int world_size) {
  return Eigen::MatrixXd::Constant(world_size, world_size, 1.0 / world_size);
}

double spectral_radius(const Eigen::MatrixXd& matrix) {
  // The symmetric solver is exact to rounding; the general one loses half the digits at defective
  // eigenvalues.
  if ((matrix - matrix.transpose()).cwiseAbs().maxCoeff() < kSymmetryTolerance) {
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(matrix, Eigen::EigenvaluesOnly);
    if (solver.info() != Eigen::Success) {
      throw std::runtime_error("The eigenvalues of a mixing matrix could not be computed.");
    }
    return solver.eigenvalues().cwiseAbs().maxCoeff();
  }
  const Eigen::EigenSolver<Eigen::MatrixXd> solver(matrix, /*computeEigenvectors=*/false);
  if (solver.info() != Eigen::Success) {
    throw std::runtime_error("The eigenvalues of a mixing matrix could not be computed.");
  }
  return solver.eigenvalues().cwiseAbs().maxCoeff();
}

}  // namespace

Eigen::MatrixXd mixing_matrix(const Round& round, int world_size) {
  Eigen::MatrixXd matrix = Eigen::MatrixXd::Identity(world_size, world_size);
  apply_round(round, matrix);
  return matrix;
}

Eigen::MatrixXd period_product(const Topology& topology, int world_size, std::int64_t num_rounds) {
  Eigen::MatrixXd product = Eigen::MatrixXd::Identity(world_size, world_size);
  for (std::int64_t k = 0; k < num_rounds; ++k) apply_round(topology.round(k), product);
  return product;
}

std::optional<double> spectral_gap(const Topology& topology, int world_size) {
  const std::optional<std::int64_t> period = topology.period();
  if (!period) return std::nullopt;
  const Eigen::MatrixXd product = period_product(topology, world_size, *period);
  const double radius = spectral_radius(product - averaging_matrix(world_size));
  return radius < kExactTolerance ? 1.0 : 1.0 - radius;
}

std::optional<std::int64_t> exact_after(const Topology& topology, int world_size,
                                        std::int64_t max_rounds) {
  const Eigen::MatrixXd mean = averaging_matrix(world_size);
  const std::int64_t last = std::min(max_rounds, topology.period().value_or(max_rounds));
  Eigen::MatrixXd product = Eigen::MatrixXd::Identity(world_size, world_size);
  for (std::int64_t k = 1; k <= last; ++k) {
    apply_round(topology.round(k - 1), product);
    if ((product - mean).cwiseAbs().maxCoeff() <= kExactTolerance) return k;
  }
  return std::nullopt;
}

}  // namespace gossamer

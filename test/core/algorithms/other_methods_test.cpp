// Methods that gossamer does not have, on the problem on which docs/design/algorithm-tests.md
// compares those that it has. The numbers are the reasons for the choice.

#include "test/core/quadratics.hpp"
#include "test/long_runs.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <Eigen/Core>
#include <gtest/gtest.h>

#include "topology/mixing.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// One method: the next parameters of all ranks (a row each) from W of the round, the present
/// parameters, their gradients, and what the method remembers.
using Step = Matrix (*)(const Matrix& mixing, const Matrix& x, const Matrix& g, double lr,
                        std::vector<Matrix>& memory);

/// DecentLaM (Yuan et al., "DecentLaM: Decentralized Momentum SGD for Large-Batch Deep Training",
/// ICCV 2021), in gossamer's order: momentum of the gradient plus (x - W x) / lr.
Matrix decent_lam(const Matrix& mixing, const Matrix& x, const Matrix& g, double lr,
                  std::vector<Matrix>& memory) {
  if (memory.empty()) memory.push_back(Matrix::Zero(x.rows(), x.cols()));
  memory[0] = 0.9 * memory[0] + (x - mixing * x) / lr + g;
  return x - lr * memory[0];
}

/// D2 (Tang et al., "D2: Decentralized Training over Decentralized Data", ICML 2018), as in the
/// paper: the ranks mix after the update, so nothing overlaps.
Matrix d_squared(const Matrix& mixing, const Matrix& x, const Matrix& g, double lr,
                 std::vector<Matrix>& memory) {
  Matrix next = mixing * (memory.empty() ? Matrix(x - lr * g)
                                         : Matrix(2.0 * x - memory[0] - lr * (g - memory[1])));
  memory = {x, g};
  return next;
}

/// As floor_of(Method) for one draw; infinite if the method diverges. `lazy`: W is (1 + W) / 2.
double floor_of_step(Step step, const std::string& name, double lr, bool lazy = false) {
  constexpr int kNumRanks = Quadratics::kRanks;
  constexpr std::int64_t kNumValues = Quadratics::kDim;
  const Quadratics problem(1);
  const auto topology = make_topology(name, {.size = kNumRanks, .node_size = kNumRanks});
  Matrix x = Matrix::Zero(kNumRanks, kNumValues);
  Matrix g = x;
  std::vector<Matrix> memory;
  for (int k = 0; k < 4000; ++k) {
    for (int rank = 0; rank < kNumRanks; ++rank) {
      problem.gradient(rank, {x.row(rank).data(), static_cast<std::size_t>(kNumValues)},
                       {g.row(rank).data(), static_cast<std::size_t>(kNumValues)});
    }
    Matrix mixing = mixing_matrix(topology->round(k), kNumRanks);
    if (lazy) mixing = 0.5 * (mixing + Matrix::Identity(kNumRanks, kNumRanks));
    x = step(mixing, x, g, lr, memory);
    if (!(x.cwiseAbs().maxCoeff() < 1e6)) return std::numeric_limits<double>::infinity();
  }
  const Eigen::Map<const Eigen::RowVectorXd> optimum(problem.optimum().data(), kNumValues);
  return std::sqrt((x.rowwise() - optimum).rowwise().squaredNorm().mean());
}

class OtherMethods : public LongRuns {};

TEST_F(OtherMethods, LeaveNothingForDecentLamBesideQuasiGlobalMomentum) {
  const auto quasi_global = [](const char* topology, double lr) {
    return floor_of({.optimizer = "qg_sgd", .optimizer_options = "beta: 0.9", .lr = lr}, topology,
                    1);
  };
  // In a static graph both have the same fixed points.
  for (const char* topology : {"static-ring", "complete"}) {
    const double floor = quasi_global(topology, 0.01);
    EXPECT_NEAR(floor_of_step(decent_lam, topology, 0.01) / floor, 1.0, 1e-9) << topology;
  }
  // Where the rounds differ, DecentLaM is worse, or diverges at every learning rate.
  EXPECT_GT(floor_of_step(decent_lam, "ring", 0.01), 1.2 * quasi_global("ring", 0.01));
  for (const double lr : {0.001, 0.01, 0.1}) {
    EXPECT_TRUE(std::isinf(floor_of_step(decent_lam, "one-peer-exp", lr))) << lr;
    EXPECT_LT(quasi_global("one-peer-exp", lr), 1.0) << lr;
  }
}

TEST_F(OtherMethods, LeaveNothingForDSquaredBesideExtra) {
  // As near to the optimum as extra where the graph is static or alternates. On one-peer-exp it
  // needs lazy mixing, which extra has by itself.
  for (const char* topology : {"static-ring", "ring"}) {
    EXPECT_LT(floor_of_step(d_squared, topology, 0.1), 1e-10) << topology;
  }
  EXPECT_TRUE(std::isinf(floor_of_step(d_squared, "one-peer-exp", 0.1)));
  EXPECT_LT(floor_of_step(d_squared, "one-peer-exp", 0.1, true), 1e-10);
}

}  // namespace
}  // namespace gossamer

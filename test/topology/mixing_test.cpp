#include "topology/mixing.hpp"

#include "test/support/mixing_matrix.hpp"
#include "test/topology/worlds.hpp"

#include <gtest/gtest.h>

namespace gossamer {
namespace {

constexpr double kTolerance = 1e-12;

class EveryTopologyMatrix : public TopologyTest {};
INSTANTIATE_TEST_SUITE_P(Topologies, EveryTopologyMatrix, testing::ValuesIn(topologies_to_test()),
                         test_name);

TEST_P(EveryTopologyMatrix, IsDoublyStochastic) {
  for_each_case(true, [](const TopologyCase& c) {
    const int size = c.world.size;
    const auto topology = c.build();
    const Eigen::VectorXd ones = Eigen::VectorXd::Ones(size);
    for (std::int64_t k = 0; k < topology->period().value_or(20); ++k) {
      const Eigen::MatrixXd w = mixing_matrix(topology->round(k), size, topology->directed());
      EXPECT_GE(w.minCoeff(), 0.0) << "round " << k;
      EXPECT_LE((w * ones - ones).cwiseAbs().maxCoeff(), kTolerance) << "round " << k;
      EXPECT_LE((w.transpose() * ones - ones).cwiseAbs().maxCoeff(), kTolerance) << "round " << k;
    }
  });
}

TEST(MixingMatrix, HoldsTheWeightsOfEveryEdge) {
  const Round round{{Edge{{0, 3}, 0.7}, Edge{{1, 2, 4}, 0.4}, Edge{{5}, 1.0}}};
  Eigen::MatrixXd expected(6, 6);
  expected << 0.7, 0.0, 0.0, 0.3, 0.0, 0.0,  //
      0.0, 0.4, 0.3, 0.0, 0.3, 0.0,          //
      0.0, 0.3, 0.4, 0.0, 0.3, 0.0,          //
      0.3, 0.0, 0.0, 0.7, 0.0, 0.0,          //
      0.0, 0.3, 0.3, 0.0, 0.4, 0.0,          //
      0.0, 0.0, 0.0, 0.0, 0.0, 1.0;
  EXPECT_LE((mixing_matrix(round, 6) - expected).cwiseAbs().maxCoeff(), kTolerance);
}

}  // namespace
}  // namespace gossamer

#pragma once
// Topologies as matrices, x <- W x, for analysis and simulation. Training never forms a matrix. A
// matrix is formed here only when a caller asks for it.

#include <cstdint>
#include <vector>

#include <Eigen/Core>

#include "topology/topology.hpp"

namespace gossamer {

/// The vectors of all ranks: one row per rank, one column per vector.
using RankRows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The matrix W of one round as a sparse operator. Memory and work are proportional to the ranks
/// and arcs of the round. Thread safe: apply() changes only its argument.
class MixingOperator {
 public:
  /// Does not check the round: sums of weights may be anything.
  explicit MixingOperator(const Round& round);

  /// x <- W x.
  void apply(RankRows& x) const { run(x, false); }
  /// x <- W^T x.
  void apply_transposed(RankRows& x) const { run(x, true); }

 private:
  /// An edge of two ranks or more: members_[first, last) keep `weight` and take `share`.
  struct Group {
    std::int32_t first = 0;
    std::int32_t last = 0;
    double weight = 1.0;
    double share = 0.0;
  };

  void run(RankRows& x, bool transposed) const;
  void mix_places(RankRows& x, bool transposed) const;
  void mix_groups(RankRows& x) const;
  void mix_groups(double* x) const;

  int node_size_;
  std::vector<Group> groups_;
  std::vector<std::int32_t> members_;
  std::vector<Arc> arcs_;
  /// Ranks (or nodes) that stand in arcs.
  std::vector<std::int32_t> in_arcs_;
};

}  // namespace gossamer

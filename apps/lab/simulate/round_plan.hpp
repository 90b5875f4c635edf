#pragma once
// A RoundPlan describes a round as work on rows. Row i holds the values of rank i; further rows
// hold sums over groups and nodes. All virtual ranks of one process follow the plan. They use the
// mixing code of training (optim/optimizer.hpp) and its order of operations. A group adds in rank
// order. In a round of two levels each node adds first, its leader mixes the sums, and every rank
// takes the result.
//
// The work falls into layers. The rows of one layer may be computed in any order and by any thread
// with the same result. Immutable once made.

#include <cstdint>
#include <vector>

#include "topology/topology.hpp"

namespace gossamer::apps {

/// A term of a sum: `weight` times the values of a row.
struct RowTerm {
  std::int32_t row = 0;
  double weight = 0.0;
};

/// The work on one row. Row of a rank: x <- keep x + terms. Any other row: the sum of its terms, of
/// which the first counts `keep` times (1 for plain sums).
struct RowWork {
  std::int32_t row = 0;
  double keep = 1.0;
  /// The row's terms are terms() [first, last) of the plan.
  std::int32_t first = 0;
  std::int32_t last = 0;
};

class RoundPlan {
 public:
  /// For a directed topology, `round` must have the weights that push_sum.hpp computes.
  RoundPlan(const Round& round, int world_size);
  /// The plan of an all-reduce: every rank replaces its values by the sum over all ranks.
  static RoundPlan sum_of_all(int world_size);

  /// Rows of ranks and of sums.
  [[nodiscard]] std::int32_t num_rows() const { return num_rows_; }
  [[nodiscard]] const std::vector<RowTerm>& terms() const { return terms_; }
  /// The work on sums, layer after layer. A layer reads the rows of ranks and of earlier layers.
  [[nodiscard]] const std::vector<std::vector<RowWork>>& sums() const { return sums_; }
  /// One piece of work for every rank that mixes.
  [[nodiscard]] const std::vector<RowWork>& ranks() const { return ranks_; }

 private:
  /// Where the rows of the places (ranks, or sums of nodes) begin, and the scale of their values.
  struct Level {
    std::int32_t first_row = 0;
    std::int32_t num_places = 0;
    double scale = 1.0;
  };

  explicit RoundPlan(int world_size) : world_size_(world_size), num_rows_(world_size) {}

  RowWork begin(std::int32_t row, double keep) const;
  std::int32_t add_sum(std::vector<RowWork>& layer, const std::vector<int>& rows);
  /// Work that mixes every place as the round says.
  std::vector<RowWork> mix_places(const Round& round, const Level& level,
                                  std::vector<RowWork>& group_sums);
  void mix_nodes(const Round& round);

  int world_size_;
  std::int32_t num_rows_;
  std::vector<RowTerm> terms_;
  std::vector<std::vector<RowWork>> sums_;
  std::vector<RowWork> ranks_;
};

}  // namespace gossamer::apps

#pragma once
// A round as work on rows: row i holds the values of rank i, further rows hold sums over groups and
// nodes. All virtual ranks of one process go through it, with the mixing code of training
// (optim/optimizer.hpp) and its order of operations: groups add in rank order, a node of a round of
// two levels adds first, its leader mixes sums, every rank takes the result.
//
// The work falls into layers; rows of one layer can be computed in any order, and nothing about a
// row depends on who computes it.

#include <cstdint>
#include <vector>

#include "topology/topology.hpp"

namespace gossamer::apps {

/// `weight` times the values of a row.
struct RowTerm {
  std::int32_t row = 0;
  double weight = 0.0;
};

/// What becomes of one row. Ranks: x <- keep x + terms. Other rows: the sum of terms, the first of
/// which counts `keep` times (1 for plain sums).
struct RowWork {
  std::int32_t row = 0;
  double keep = 1.0;
  /// Terms [first, last) of the plan.
  std::int32_t first = 0;
  std::int32_t last = 0;
};

class RoundPlan {
 public:
  /// `round` as push_sum.hpp gives it where the topology is directed.
  RoundPlan(const Round& round, int world_size);
  /// One sum over all ranks, which every rank takes in the place of its own values.
  static RoundPlan sum_of_all(int world_size);

  /// Ranks and sums.
  [[nodiscard]] std::int32_t num_rows() const { return num_rows_; }
  [[nodiscard]] const std::vector<RowTerm>& terms() const { return terms_; }
  /// Sums, layer after layer; each reads rows of ranks and of layers before.
  [[nodiscard]] const std::vector<std::vector<RowWork>>& sums() const { return sums_; }
  /// One for every rank that mixes.
  [[nodiscard]] const std::vector<RowWork>& ranks() const { return ranks_; }

 private:
  /// The first row of what stands for places (ranks, or sums of nodes), and where work goes.
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

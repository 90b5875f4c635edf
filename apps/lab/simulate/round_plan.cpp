#include "apps/lab/simulate/round_plan.hpp"

#include <numeric>
#include <utility>

namespace gossamer::apps {

RoundPlan::RoundPlan(const Round& round, int world_size)
    : world_size_(world_size), num_rows_(world_size) {
  if (round.node_size > 1) {
    mix_nodes(round);
    return;
  }
  std::vector<RowWork> group_sums;
  ranks_ = mix_places(round, {.first_row = 0, .num_places = world_size}, group_sums);
  if (!group_sums.empty()) sums_.push_back(std::move(group_sums));
}

RoundPlan RoundPlan::sum_of_all(int world_size) {
  RoundPlan plan(world_size);
  std::vector<int> ranks(static_cast<std::size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<RowWork> sums;
  const std::int32_t sum = plan.add_sum(sums, ranks);
  plan.sums_.push_back(std::move(sums));
  for (const int rank : ranks) {
    RowWork work = plan.begin(rank, 0.0);
    plan.terms_.push_back({sum, 1.0});
    work.last = static_cast<std::int32_t>(plan.terms_.size());
    plan.ranks_.push_back(work);
  }
  return plan;
}

RowWork RoundPlan::begin(std::int32_t row, double keep) const {
  const auto at = static_cast<std::int32_t>(terms_.size());
  return {.row = row, .keep = keep, .first = at, .last = at};
}

std::int32_t RoundPlan::add_sum(std::vector<RowWork>& layer, const std::vector<int>& rows) {
  RowWork work = begin(num_rows_++, 1.0);
  for (const int row : rows) terms_.push_back({row, 1.0});
  work.last = static_cast<std::int32_t>(terms_.size());
  layer.push_back(work);
  return work.row;
}

std::vector<RowWork> RoundPlan::mix_places(const Round& round, const Level& level,
                                           std::vector<RowWork>& group_sums) {
  std::vector<RowWork> works;
  works.reserve(static_cast<std::size_t>(level.num_places));
  terms_.reserve(terms_.size() + works.capacity());
  const auto finish = [&](RowWork work) {
    work.last = static_cast<std::int32_t>(terms_.size());
    works.push_back(work);
  };
  for (const Edge& edge : round.edges) {
    if (edge.ranks.size() == 2) {
      for (const std::size_t me : {std::size_t{0}, std::size_t{1}}) {
        const RowWork work = begin(edge.ranks[me] + level.first_row, edge.weight * level.scale);
        terms_.push_back({edge.ranks[1 - me] + level.first_row, edge.share() * level.scale});
        finish(work);
      }
    } else if (edge.ranks.size() > 2) {
      std::vector<int> rows = edge.ranks;
      for (int& row : rows) row += level.first_row;
      const std::int32_t sum = add_sum(group_sums, rows);
      for (const int row : rows) {
        const RowWork work = begin(row, (edge.weight - edge.share()) * level.scale);
        terms_.push_back({sum, edge.share() * level.scale});
        finish(work);
      }
    } else if (edge.ranks.size() == 1 && level.scale != 1.0) {
      // A node without a partner still turns its sum into a mean.
      finish(begin(edge.ranks.front() + level.first_row, level.scale));
    }
  }
  // The arcs are ordered by their receiver.
  for (std::size_t a = 0; a < round.arcs.size();) {
    const int to = round.arcs[a].to;
    RowWork work = begin(to + level.first_row, 0.0);
    for (; a < round.arcs.size() && round.arcs[a].to == to; ++a) {
      const Arc& arc = round.arcs[a];
      if (arc.from == to) {
        work.keep = arc.weight * level.scale;
      } else {
        terms_.push_back({arc.from + level.first_row, arc.weight * level.scale});
      }
    }
    finish(work);
  }
  return works;
}

void RoundPlan::mix_nodes(const Round& round) {
  const int size = round.node_size;
  std::vector<RowWork> node_sums;
  const std::int32_t first_node = num_rows_;
  for (int first = 0; first < world_size_; first += size) {
    std::vector<int> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), first);
    add_sum(node_sums, ranks);
  }
  sums_.push_back(std::move(node_sums));
  const Level nodes{first_node, world_size_ / size, 1.0 / size};
  std::vector<RowWork> group_sums;
  std::vector<RowWork> works = mix_places(round, nodes, group_sums);
  if (!group_sums.empty()) sums_.push_back(std::move(group_sums));
  // The results of nodes need rows of their own, because other nodes still read the sums.
  const std::int32_t first_result = num_rows_;
  num_rows_ += nodes.num_places;
  std::vector<RowWork> results;
  for (const RowWork& work : works) {
    RowWork result = begin(work.row - first_node + first_result, work.keep);
    terms_.push_back({work.row, 1.0});
    for (std::int32_t t = work.first; t < work.last; ++t) {
      const RowTerm term = terms_[static_cast<std::size_t>(t)];
      terms_.push_back(term);
    }
    result.last = static_cast<std::int32_t>(terms_.size());
    results.push_back(result);
  }
  sums_.push_back(std::move(results));
  for (int rank = 0; rank < world_size_; ++rank) {
    RowWork work = begin(rank, 0.0);
    terms_.push_back({first_result + rank / size, 1.0});
    work.last = static_cast<std::int32_t>(terms_.size());
    ranks_.push_back(work);
  }
}

}  // namespace gossamer::apps

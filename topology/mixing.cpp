#include "topology/mixing.hpp"

#include <algorithm>
#include <span>

#include "base/sorted.hpp"

namespace gossamer {

MixingOperator::MixingOperator(const Round& round)
    : node_size_(round.node_size), arcs_(round.arcs) {
  for (const Edge& edge : round.edges) {
    if (edge.ranks.size() < 2) continue;
    const auto first = static_cast<std::int32_t>(members_.size());
    members_.insert(members_.end(), edge.ranks.begin(), edge.ranks.end());
    groups_.push_back(
        {first, static_cast<std::int32_t>(members_.size()), edge.weight, edge.share()});
  }
  for (const Arc& arc : arcs_) {
    in_arcs_.push_back(arc.from);
    in_arcs_.push_back(arc.to);
  }
  sort_unique(in_arcs_);
}

void MixingOperator::mix_groups(double* x) const {
  for (const Group& group : groups_) {
    double sum = 0.0;
    const std::span members(members_.data() + group.first, members_.data() + group.last);
    for (const std::int32_t member : members) sum += x[member];
    for (const std::int32_t member : members) {
      x[member] = (group.weight - group.share) * x[member] + group.share * sum;
    }
  }
}

void MixingOperator::mix_groups(RankRows& x) const {
  // One column is what the search for eigenvalues asks for, thousands of times.
  if (x.cols() == 1) {
    mix_groups(x.data());
    return;
  }
  Eigen::RowVectorXd sum(x.cols());
  for (const Group& group : groups_) {
    sum.setZero();
    for (std::int32_t m = group.first; m < group.last; ++m) {
      sum += x.row(members_[static_cast<std::size_t>(m)]);
    }
    for (std::int32_t m = group.first; m < group.last; ++m) {
      auto row = x.row(members_[static_cast<std::size_t>(m)]);
      row = (group.weight - group.share) * row + group.share * sum;
    }
  }
}

void MixingOperator::mix_places(RankRows& x, bool transposed) const {
  mix_groups(x);
  if (arcs_.empty()) return;
  // What is read must not have been written yet.
  const RankRows before = x;
  for (const std::int32_t place : in_arcs_) x.row(place).setZero();
  if (x.cols() == 1) {
    for (const Arc& arc : arcs_) {
      const int from = transposed ? arc.to : arc.from;
      const int to = transposed ? arc.from : arc.to;
      x.data()[to] += arc.weight * before.data()[from];
    }
    return;
  }
  for (const Arc& arc : arcs_) {
    const int from = transposed ? arc.to : arc.from;
    const int to = transposed ? arc.from : arc.to;
    x.row(to) += arc.weight * before.row(from);
  }
}

void MixingOperator::run(RankRows& x, bool transposed) const {
  if (node_size_ == 1) return mix_places(x, transposed);
  const Eigen::Index num_nodes = x.rows() / node_size_;
  RankRows nodes(num_nodes, x.cols());
  for (Eigen::Index node = 0; node < num_nodes; ++node) {
    nodes.row(node) = x.middleRows(node * node_size_, node_size_).colwise().mean();
  }
  mix_places(nodes, transposed);
  for (Eigen::Index rank = 0; rank < x.rows(); ++rank) x.row(rank) = nodes.row(rank / node_size_);
}

}  // namespace gossamer

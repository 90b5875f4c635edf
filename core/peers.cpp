#include "core/peers.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "topology/check.hpp"

namespace gossamer {
namespace {

std::vector<int> world_ranks_of(const std::vector<int>& places, int node_size) {
  std::vector<int> ranks = places;
  for (int& rank : ranks) rank *= node_size;
  return ranks;
}

}  // namespace

bool SubCommunicators::is_world(const std::vector<int>& ranks) const {
  return static_cast<int>(ranks.size()) == world_.size();
}

void SubCommunicators::build(const Round& round) {
  if (round.node_size > 1 && !nodes_.contains(round.node_size)) {
    const int node = world_.rank() / round.node_size;
    NodeComms& comms = nodes_[round.node_size];
    comms.sum = world_.split(node);
    comms.result = world_.split(node);
  }
  int color = -1;
  int next_color = 0;
  std::vector<std::vector<int>> fresh;
  for (const Edge& edge : round.edges) {
    if (edge.ranks.size() <= 2) continue;
    const std::vector<int> ranks = world_ranks_of(edge.ranks, round.node_size);
    if (is_world(ranks) || groups_.contains(ranks)) continue;
    if (std::ranges::binary_search(ranks, world_.rank())) color = next_color;
    fresh.push_back(ranks);
    ++next_color;
  }
  if (fresh.empty()) return;
  std::unique_ptr<Communicator> mine = world_.split(color);
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    groups_[fresh[i]] = static_cast<int>(i) == color ? std::move(mine) : nullptr;
  }
}

Communicator& SubCommunicators::group(const RankRound& round) const {
  const std::vector<int> ranks = world_ranks_of(round.group, round.node_size);
  if (is_world(ranks)) return world_;
  const auto found = groups_.find(ranks);
  if (found == groups_.end() || !found->second) {
    throw std::logic_error("SubCommunicators::group: this rank is not in that group");
  }
  return *found->second;
}

Communicator& SubCommunicators::node_sum(int node_size) const { return *nodes_.at(node_size).sum; }

Communicator& SubCommunicators::node_result(int node_size) const {
  return *nodes_.at(node_size).result;
}

std::int64_t SubCommunicators::num_groups() const {
  return std::ranges::count_if(groups_, [](const auto& entry) { return entry.second != nullptr; }) +
         2 * std::ssize(nodes_);
}

Peers::Peers(SubCommunicators& parts, const Topology& topology, MostMembers most_members)
    : parts_(parts),
      topology_(&topology),
      most_members_(most_members),
      push_sum_(parts.world().size()) {
  check_topology(topology, parts.world().size());
  if (topology.directed()) return;
  for (std::int64_t k = 0; k < topology.period().value_or(0); ++k) rounds_.push_back(take(k));
}

Peers::Peers(SubCommunicators& parts)
    : parts_(parts), topology_(nullptr), push_sum_(parts.world().size()) {
  RankRound sum{.kind = RankRound::Kind::kGroup, .keep = 0.0, .take = {1.0}};
  sum.group.resize(static_cast<std::size_t>(parts.world().size()));
  std::iota(sum.group.begin(), sum.group.end(), 0);
  rounds_ = {std::move(sum)};
}

const RankRound& Peers::round(std::int64_t k) {
  if (topology_ == nullptr) return rounds_.front();
  if (topology_->period() && !topology_->directed()) {
    return rounds_[static_cast<std::size_t>(k % *topology_->period())];
  }
  if (k == last_round_) return rounds_.front();
  if (!topology_->directed()) {
    rounds_.assign(1, take(k));
    last_round_ = k;
    return rounds_.front();
  }
  if (k < last_round_) throw std::logic_error("Peers::round: push-sum does not go back");
  while (last_round_ < k) rounds_.assign(1, take(++last_round_));
  return rounds_.front();
}

RankRound Peers::take(std::int64_t k) {
  const auto rank = static_cast<std::size_t>(world().rank());
  weight_ = push_sum_.weights()[rank];
  Round round = next_round(*topology_, k, push_sum_);
  const std::int64_t most = round.node_size > 1 ? most_members_.nodes : most_members_.ranks;
  round = with_arcs_for_groups(std::move(round), most);
  parts_.build(round);
  RankRound mine = rank_round(round, world().rank());
  mine.update_scale = 1.0 / push_sum_.weights()[rank];
  return mine;
}

}  // namespace gossamer

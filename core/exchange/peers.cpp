#include "core/exchange/peers.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "topology/check.hpp"

namespace gossamer {
namespace {

// Uses of parts.
constexpr std::string_view kGroups = "groups";
constexpr std::string_view kNodeSums = "sums of nodes";
constexpr std::string_view kNodeResults = "results of nodes";

std::vector<int> world_ranks_of(const std::vector<int>& places, int node_size) {
  std::vector<int> ranks = places;
  for (int& rank : ranks) rank *= node_size;
  return ranks;
}

/// What a round needs for sums, and for blocks of single ranks or nodes.
std::pair<RoundNeeds, RoundNeeds> needs_of(const RankRound& round) {
  RoundNeeds sums;
  RoundNeeds single;
  // The sum inside the node, and the broadcast of the result.
  if (round.node_size > 1) sums = {.inboxes = 1, .carried = 3};
  if (round.kind == RankRound::Kind::kGroup) {
    sums = sums + RoundNeeds{.inboxes = 1, .carried = 2};
  } else if (round.kind != RankRound::Kind::kIdle) {
    const std::int64_t num_heard = std::ssize(round.take);
    single = {.inboxes = num_heard, .carried = 1 + num_heard};
  }
  return {sums, single};
}

}  // namespace

bool SubCommunicators::is_world(const std::vector<int>& ranks) const {
  return static_cast<int>(ranks.size()) == world_.size();
}

void SubCommunicators::build(const Round& round) {
  if (round.node_size > 1) {
    const auto nodes = ranks_of_nodes(world_.size(), round.node_size);
    for (const std::string_view use : {kNodeSums, kNodeResults}) world_.make_subgroups(use, nodes);
  }
  std::vector<std::vector<int>> groups;
  for (const Edge& edge : round.edges) {
    if (edge.ranks.size() <= 2) continue;
    std::vector<int> ranks = world_ranks_of(edge.ranks, round.node_size);
    if (!is_world(ranks)) groups.push_back(std::move(ranks));
  }
  world_.make_subgroups(kGroups, groups);
}

Communicator& SubCommunicators::group(const RankRound& round) const {
  const std::vector<int> ranks = world_ranks_of(round.group, round.node_size);
  if (is_world(ranks)) return world_;
  Communicator* const found = world_.find_subgroup(kGroups, ranks);
  if (found == nullptr) {
    throw std::logic_error("SubCommunicators::group: this rank is not in that group");
  }
  return *found;
}

Communicator& SubCommunicators::node(std::string_view use, int node_size) const {
  std::vector<int> ranks(static_cast<std::size_t>(node_size));
  std::iota(ranks.begin(), ranks.end(), world_.rank() / node_size * node_size);
  Communicator* const found = world_.find_subgroup(use, ranks);
  if (found == nullptr) throw std::logic_error("SubCommunicators: no round has such nodes");
  return *found;
}

Communicator& SubCommunicators::node_sum(int node_size) const { return node(kNodeSums, node_size); }

Communicator& SubCommunicators::node_result(int node_size) const {
  return node(kNodeResults, node_size);
}

void RoundNeeds::raise_to(const RoundNeeds& other) {
  inboxes = std::max(inboxes, other.inboxes);
  carried = std::max(carried, other.carried);
}

std::vector<std::vector<int>> ranks_of_nodes(int world_size, int node_size) {
  std::vector<std::vector<int>> nodes(static_cast<std::size_t>(world_size / node_size));
  for (int rank = 0; rank < world_size; ++rank) {
    nodes[static_cast<std::size_t>(rank / node_size)].push_back(rank);
  }
  return nodes;
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
  if (const auto own = std::exchange(resumed_weight_, std::nullopt)) {
    push_sum_ = PushSum(gather_weights(*own));
    last_round_ = k - 1;
  }
  if (k == last_round_) return rounds_.front();
  if (topology_->directed()) advance_weights_to(k);
  rounds_.assign(1, take(k));
  last_round_ = k;
  return rounds_.front();
}

void Peers::resume(double weight) {
  if (topology_ != nullptr && topology_->directed()) resumed_weight_ = weight;
}

std::vector<double> Peers::gather_weights(double own) const {
  std::vector<double> weights;
  double sum = 0.0;
  double least = own;
  for (const std::string& text : world().all_gather(shortest(own))) {
    weights.push_back(std::stod(text));
    sum += weights.back();
    least = std::min(least, weights.back());
  }
  // Push-sum keeps the sum up to rounding.
  const auto size = static_cast<double>(weights.size());
  if (least > 0.0 && std::abs(sum - size) <= 1e-6 * size) return weights;
  throw CheckpointError(concat("the run/model_weight of the ranks sum to ", shortest(sum),
                               ", and the least is ", shortest(least), ", allowed: a sum of ",
                               weights.size(), ", and each more than 0; load states that the ",
                               "ranks of one run have saved after the same step"));
}

void Peers::advance_weights_to(std::int64_t k) {
  if (k < last_round_) throw std::logic_error("Peers::round: push-sum does not go back");
  std::vector<double> before;
  while (last_round_ + 1 < k) {
    // A period that changes no weight changes none when it repeats.
    if (const auto period = topology_->period(); period && (last_round_ + 1) % *period == 0) {
      if (push_sum_.weights() == before) last_round_ += (k - 1 - last_round_) / *period * *period;
      before = push_sum_.weights();
      if (last_round_ + 1 == k) return;
    }
    push_sum_.skip(topology_->round(++last_round_));
  }
}

const MostNeeds& Peers::most_needs() {
  if (most_needs_) return *most_needs_;
  MostNeeds most;
  const auto add = [&most](const RankRound& round) {
    const auto [sums, single] = needs_of(round);
    most.sums.raise_to(sums);
    most.single.raise_to(single);
    most.all.raise_to(sums + single);
  };
  if (topology_ == nullptr) add(rounds_.front());
  const std::int64_t period = topology_ == nullptr ? 0 : topology_->period().value_or(1);
  for (std::int64_t k = 0; k < period; ++k) {
    add(rank_round(exchanged(topology_->round(k)), parts_.world().rank()));
  }
  most_needs_ = most;
  return *most_needs_;
}

Round Peers::exchanged(Round round) const {
  const std::int64_t most = round.node_size > 1 ? most_members_.nodes : most_members_.ranks;
  return with_arcs_for_groups(std::move(round), most);
}

RankRound Peers::take(std::int64_t k) {
  const auto rank = static_cast<std::size_t>(world().rank());
  weight_ = push_sum_.weights()[rank];
  const Round round = exchanged(next_round(*topology_, k, push_sum_));
  parts_.build(round);
  RankRound mine = rank_round(round, world().rank());
  mine.update_scale = 1.0 / push_sum_.weights()[rank];
  return mine;
}

}  // namespace gossamer

#include "apps/lab/plan/scheduled_traffic.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace gossamer::apps {
namespace {

bool follows_topology(const PlannedExchange& exchange) {
  return exchange.ranks != LaneRanks::kInNode && exchange.members != LaneMembers::kAll;
}

/// Of larger worlds a ring stands for the messages between all ranks.
constexpr int kMostDirect = 128;

/// A group of each node.
Round inside_nodes(int world_size, int node_size) {
  Round round;
  for (int first = 0; first < world_size; first += node_size) {
    std::vector<int> ranks(static_cast<std::size_t>(node_size));
    std::iota(ranks.begin(), ranks.end(), first);
    round.edges.push_back(averaging_edge(std::move(ranks)));
  }
  return round;
}

/// The exchanges of a round in two levels between nodes, once for every place in a node.
Round between_places(const Round& nodes) {
  Round round;
  for (int place = 0; place < nodes.node_size; ++place) {
    const auto rank_of = [&](int node) { return node * nodes.node_size + place; };
    for (Edge edge : nodes.edges) {
      std::ranges::transform(edge.ranks, edge.ranks.begin(), rank_of);
      round.edges.push_back(std::move(edge));
    }
    for (Arc arc : nodes.arcs) {
      arc.from = rank_of(arc.from);
      arc.to = rank_of(arc.to);
      round.arcs.push_back(arc);
    }
  }
  return round;
}

}  // namespace

const Traffic* ScheduledTraffic::of(std::int64_t step, std::int64_t bucket) {
  const auto k = static_cast<std::size_t>(step);
  const auto b = static_cast<std::size_t>(bucket);
  if (answers_.size() <= k) answers_.resize(k + 1);
  if (answers_[k].size() <= b) answers_[k].resize(b + 1);
  std::optional<const Traffic*>& answer = answers_[k][b];
  if (!answer) answer = find(step, bucket);
  return *answer;
}

const Traffic* ScheduledTraffic::find(std::int64_t step, std::int64_t bucket) {
  std::vector<PlannedExchange> exchanges = schedule_.at(step, bucket);
  if (exchanges.empty()) return nullptr;
  for (PlannedExchange& exchange : exchanges) {
    if (!follows_topology(exchange)) exchange.round = 0;
    if (topology_ != nullptr && topology_->period()) exchange.round %= *topology_->period();
  }
  const auto found = known_.find(exchanges);
  if (found != known_.end()) return &found->second;
  std::vector<Traffic> parts;
  for (const PlannedExchange& exchange : exchanges) parts.push_back(part_of(exchange));
  Traffic all = together(parts, links_.world().size);
  // The first wait of a bucket is for all that it has started.
  all.late = std::ranges::min(exchanges, {}, &PlannedExchange::late).late;
  return &known_.emplace(std::move(exchanges), std::move(all)).first->second;
}

Traffic ScheduledTraffic::part_of(const PlannedExchange& exchange) const {
  double messages = exchange.message_share;
  Traffic traffic;
  if (exchange.ranks == LaneRanks::kInNode) {
    const int node_size = topology_->round(0).node_size;
    traffic = traffic_of(inside_nodes(links_.world().size, node_size), links_);
  } else if (exchange.ranks == LaneRanks::kBetweenNodes) {
    traffic = traffic_of(between_places(topology_->round(exchange.round)), links_);
  } else if (exchange.is_coded_sum && links_.world().size <= kMostDirect) {
    const int size = links_.world().size;
    traffic = traffic_of(with_arcs_for_groups(inside_nodes(size, size), size), links_);
  } else if (!follows_topology(exchange)) {
    traffic = all_reduce_traffic(links_);
  } else {
    Round round = topology_->round(exchange.round);
    // Lanes send a block to every member of a group where this takes fewer bytes than a sum, or
    // where they must. A grid is for blocks of single ranks (core/exchange/grid_lane.hpp).
    const MixingCodec* const codec = codec_ == nullptr ? nullptr : codec_->mixing();
    const bool encodes = codec != nullptr && (round.node_size == 1 || !codec->needs_grid());
    if (!encodes) messages = exchange.group_share;
    std::int64_t most = encodes ? most_coded_members(*codec) : 0;
    if (exchange.result == LaneResult::kApart) most = links_.world().size;
    traffic = traffic_of(with_arcs_for_groups(std::move(round), most), links_);
  }
  scale(traffic, messages, exchange.group_share);
  return traffic;
}

}  // namespace gossamer::apps

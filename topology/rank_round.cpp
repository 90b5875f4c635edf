#include "topology/rank_round.hpp"

#include <algorithm>

namespace gossamer {
namespace {

RankRound of_edge(const Edge& edge, int place) {
  RankRound mine;
  if (edge.ranks.size() < 2) return mine;
  mine.keep = edge.weight;
  mine.take = {edge.share()};
  if (edge.ranks.size() == 2) {
    mine.kind = RankRound::Kind::kPair;
    mine.send_to = {edge.ranks[0] == place ? edge.ranks[1] : edge.ranks[0]};
    mine.receive_from = mine.send_to;
    return mine;
  }
  mine.kind = RankRound::Kind::kGroup;
  mine.group = edge.ranks;
  // The inbox holds this rank's own value, too.
  mine.keep -= edge.share();
  return mine;
}

}  // namespace

RankRound rank_round(const Round& round, int rank) {
  const int place = rank / round.node_size;
  RankRound mine;
  bool found = false;
  for (const Arc& arc : round.arcs) {
    if (arc.to == place) {
      if (!found) mine.keep = 0.0;
      found = true;
      if (arc.from == place) {
        mine.keep = arc.weight;
      } else {
        mine.receive_from.push_back(arc.from);
        mine.take.push_back(arc.weight);
      }
    } else if (arc.from == place) {
      mine.send_to.push_back(arc.to);
    }
  }
  if (!found) {
    mine = of_edge(round.edge_of(place), place);
  } else if (!mine.send_to.empty() || !mine.receive_from.empty()) {
    mine.kind = RankRound::Kind::kNeighbors;
  }
  mine.node_size = round.node_size;
  return mine;
}

double exchange_bytes(std::int64_t bytes, std::size_t num_ranks) {
  if (num_ranks < 2) return 0.0;
  if (num_ranks == 2) return static_cast<double>(bytes);
  const auto n = static_cast<double>(num_ranks);
  return 2.0 * (n - 1.0) / n * static_cast<double>(bytes);
}

double bytes_sent(const RankRound& round, int rank, const BlockBytes& bytes) {
  const double between =
      round.kind == RankRound::Kind::kGroup
          ? exchange_bytes(bytes.plain, round.group.size())
          : static_cast<double>(bytes.encoded) * static_cast<double>(round.send_to.size());
  if (round.node_size == 1) return between;
  const double inside = exchange_bytes(bytes.plain, static_cast<std::size_t>(round.node_size));
  const bool leads = rank % round.node_size == 0;
  if (!leads || round.kind == RankRound::Kind::kIdle) return inside;
  return inside + between + static_cast<double>(bytes.plain);
}

RoundTraffic round_traffic(const Round& round, int world_size, std::int64_t bytes) {
  const std::int64_t num_places = world_size / round.node_size;
  std::vector<std::int64_t> sends(static_cast<std::size_t>(num_places));
  std::vector<std::int64_t> hears(sends.size());
  for (const Arc& arc : round.arcs) {
    if (arc.from == arc.to) continue;
    ++sends[static_cast<std::size_t>(arc.from)];
    ++hears[static_cast<std::size_t>(arc.to)];
  }
  RoundTraffic traffic;
  const double inside = exchange_bytes(bytes, static_cast<std::size_t>(round.node_size));
  const auto leader_adds = static_cast<double>(round.node_size > 1 ? bytes : 0);
  double sum = inside * world_size;
  const auto add = [&](double between, std::int64_t degree) {
    sum += between + leader_adds;
    traffic.max_bytes = std::max(traffic.max_bytes, inside + between + leader_adds);
    traffic.max_degree = std::max(traffic.max_degree, degree);
  };
  traffic.max_bytes = inside;
  for (const Edge& edge : round.edges) {
    if (edge.ranks.size() < 2) continue;
    for (std::size_t member = 0; member < edge.ranks.size(); ++member) {
      add(exchange_bytes(bytes, edge.ranks.size()), std::ssize(edge.ranks) - 1);
    }
  }
  for (std::size_t place = 0; place < sends.size(); ++place) {
    if (sends[place] == 0 && hears[place] == 0) continue;
    add(static_cast<double>(bytes) * static_cast<double>(sends[place]),
        std::max(sends[place], hears[place]));
  }
  traffic.mean_bytes = sum / world_size;
  return traffic;
}

}  // namespace gossamer

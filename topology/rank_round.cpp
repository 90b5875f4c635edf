#include "gossamer/topology/rank_round.hpp"

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

}  // namespace gossamer

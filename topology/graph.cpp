#include "topology/graph.hpp"

#include <algorithm>
#include <stdexcept>

#include "base/sorted.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

std::vector<Link> distinct(std::vector<Link> links, int world_size) {
  for (const auto& [a, b] : links) {
    if (std::min(a, b) >= 0 && std::max(a, b) < world_size) continue;
    throw std::logic_error(
        concat("A link from rank ", a, " to rank ", b, " in a world of ", world_size, " ranks."));
  }
  std::erase_if(links, [](const Link& link) { return link.first == link.second; });
  sort_unique(links);
  return links;
}

/// How many links every rank is the first end of.
std::vector<int> degrees_of(const std::vector<Link>& links, int world_size) {
  std::vector<int> degrees(static_cast<std::size_t>(world_size));
  for (const Link& link : links) ++degrees[static_cast<std::size_t>(link.first)];
  return degrees;
}

/// Links become arcs with the weight that `weight` gives; ranks keep the rest.
template <class Weight>
Round weighted(const std::vector<Link>& links, int world_size, const Weight& weight) {
  std::vector<double> kept(static_cast<std::size_t>(world_size), 1.0);
  std::vector<bool> linked(kept.size());
  std::vector<Arc> arcs;
  for (const auto& [from, to] : links) {
    arcs.push_back({from, to, weight(from, to)});
    kept[static_cast<std::size_t>(from)] -= arcs.back().weight;
    linked[static_cast<std::size_t>(from)] = true;
    linked[static_cast<std::size_t>(to)] = true;
  }
  for (int rank = 0; rank < world_size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (linked[index]) arcs.push_back({rank, rank, std::max(0.0, kept[index])});
  }
  return complete_round({}, world_size, std::move(arcs));
}

}  // namespace

Round metropolis_round(const std::vector<Link>& links, int world_size) {
  std::vector<Link> both = links;
  for (const auto& [a, b] : links) both.emplace_back(b, a);
  both = distinct(std::move(both), world_size);
  const std::vector<int> degrees = degrees_of(both, world_size);
  return weighted(both, world_size, [&degrees](int from, int to) {
    const int larger =
        std::max(degrees[static_cast<std::size_t>(from)], degrees[static_cast<std::size_t>(to)]);
    return 1.0 / (1.0 + larger);
  });
}

Round directed_round(const std::vector<Link>& links, int world_size) {
  const std::vector<Link> ways = distinct(links, world_size);
  const std::vector<int> degrees = degrees_of(ways, world_size);
  return weighted(ways, world_size, [&degrees](int from, int /*to*/) {
    return 1.0 / (1.0 + degrees[static_cast<std::size_t>(from)]);
  });
}

bool is_tree(const Round& round) {
  if (round.node_size > 1) return false;
  std::vector<Arc> arcs = round.arcs;
  for (const Edge& edge : round.edges) {
    if (edge.ranks.size() > 2) return false;
    append_arcs(edge, arcs);
  }
  // Ranks that are joined so far have the same root: the last rank on the way from one to the next.
  std::vector<int> next;
  for (const Arc& arc : arcs) {
    while (std::ssize(next) <= arc.to) next.push_back(static_cast<int>(next.size()));
  }
  const auto next_of = [&next](int rank) -> int& { return next[static_cast<std::size_t>(rank)]; };
  const auto root_of = [&next_of](int rank) {
    while (next_of(rank) != rank) {
      next_of(rank) = next_of(next_of(rank));
      rank = next_of(rank);
    }
    return rank;
  };
  std::size_t num_links = 0;
  for (const Arc& arc : arcs) {
    if (arc.from >= arc.to) continue;
    const int root = root_of(arc.from);
    // They were joined before, so this link closes a cycle.
    if (root == root_of(arc.to)) return false;
    next_of(root) = root_of(arc.to);
    ++num_links;
  }
  return num_links + 1 == next.size();
}

}  // namespace gossamer

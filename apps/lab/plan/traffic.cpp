#include "apps/lab/plan/traffic.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "topology/rank_round.hpp"

namespace gossamer::apps {
namespace {

/// Adds the flows and the latency of one message to `transfer`.
void add_message(const LinkTable& links, int from, int to, double share, Transfer& transfer) {
  if (links.same_node(from, to)) {
    transfer.flows.push_back({links.out_of_rank(from), share});
    transfer.flows.push_back({links.into_rank(to), share});
  } else {
    transfer.flows.push_back({links.out_of_node(from), share});
    transfer.flows.push_back({links.into_node(to), share});
    if (links.crosses(from, to)) {
      transfer.flows.push_back({links.out_of_region(from, to), share});
      transfer.flows.push_back({links.into_region(from, to), share});
    }
  }
  transfer.latency_s = std::max(transfer.latency_s, links.latency_s(from, to));
  transfer.ready_s = std::max(transfer.ready_s, links.ready_s(from, to));
}

/// A pair, or a ring of more.
Transfer group_transfer(const LinkTable& links, const std::vector<int>& ranks) {
  Transfer transfer;
  const std::size_t n = ranks.size();
  if (n < 2) return transfer;
  const double share = exchange_bytes(1, n);
  for (std::size_t i = 0; i < n; ++i) {
    add_message(links, ranks[i], ranks[(i + 1) % n], share, transfer);
  }
  if (n > 2) {
    transfer.latency_s *= 2.0 * static_cast<double>(n - 1);
    transfer.holds_links = true;
  }
  return transfer;
}

std::vector<int> ranks_of_node(int node, int node_size) {
  std::vector<int> ranks(static_cast<std::size_t>(node_size));
  std::iota(ranks.begin(), ranks.end(), node * node_size);
  return ranks;
}

/// The transfers between places (ranks, or nodes of a round in two levels), each with its places.
std::vector<std::pair<Transfer, std::vector<int>>> between_places(const Round& round,
                                                                  const LinkTable& links) {
  std::vector<std::pair<Transfer, std::vector<int>>> found;
  for (const Edge& edge : round.edges) {
    if (edge.ranks.size() < 2) continue;
    std::vector<int> leaders = edge.ranks;
    for (int& rank : leaders) rank *= round.node_size;
    found.emplace_back(group_transfer(links, leaders), edge.ranks);
    found.back().first.is_message = edge.ranks.size() == 2;
  }
  for (const Arc& arc : round.arcs) {
    if (arc.from == arc.to) continue;
    Transfer transfer{.is_message = true};
    add_message(links, arc.from * round.node_size, arc.to * round.node_size, 1.0, transfer);
    found.emplace_back(std::move(transfer), std::vector{arc.from, arc.to});
  }
  return found;
}

/// The transfer of the result from the first rank of a node to the others, along a binary tree in
/// pieces.
Transfer broadcast_transfer(const LinkTable& links, const std::vector<int>& ranks) {
  Transfer transfer;
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    add_message(links, ranks[i - 1], ranks[i], 1.0, transfer);
  }
  if (ranks.size() > 1) {
    transfer.latency_s *= static_cast<double>(std::bit_width(ranks.size() - 1));
  }
  return transfer;
}

std::vector<Transfer> two_levels(const Round& round, const LinkTable& links) {
  const int num_nodes = links.world().size / round.node_size;
  std::vector<Transfer> transfers;
  for (int node = 0; node < num_nodes; ++node) {
    const std::vector<int> ranks = ranks_of_node(node, round.node_size);
    transfers.push_back(group_transfer(links, ranks));
    transfers.back().members = ranks;
  }
  std::vector<std::vector<int>> between_of(static_cast<std::size_t>(num_nodes));
  for (auto& [transfer, nodes] : between_places(round, links)) {
    const int index = static_cast<int>(transfers.size());
    transfer.num_before = static_cast<int>(nodes.size());
    for (const int node : nodes) {
      transfers[static_cast<std::size_t>(node)].next.push_back(index);
      between_of[static_cast<std::size_t>(node)].push_back(index);
    }
    transfers.push_back(std::move(transfer));
  }
  for (int node = 0; node < num_nodes; ++node) {
    const std::vector<int> ranks = ranks_of_node(node, round.node_size);
    const std::vector<int>& before = between_of[static_cast<std::size_t>(node)];
    if (before.empty()) {
      transfers[static_cast<std::size_t>(node)].waiters = ranks;
      continue;
    }
    Transfer transfer = broadcast_transfer(links, ranks);
    transfer.num_before = static_cast<int>(before.size());
    transfer.waiters = ranks;
    for (const int index : before) {
      transfers[static_cast<std::size_t>(index)].next.push_back(static_cast<int>(transfers.size()));
    }
    transfers.push_back(std::move(transfer));
  }
  return transfers;
}

Traffic index_of(std::vector<Transfer> transfers, int world_size) {
  Traffic traffic{.transfers = std::move(transfers)};
  traffic.starts.resize(static_cast<std::size_t>(world_size));
  traffic.num_waits.resize(static_cast<std::size_t>(world_size));
  for (std::size_t i = 0; i < traffic.transfers.size(); ++i) {
    for (const int rank : traffic.transfers[i].members) {
      traffic.starts[static_cast<std::size_t>(rank)].push_back(static_cast<int>(i));
    }
    for (const int rank : traffic.transfers[i].waiters) {
      ++traffic.num_waits[static_cast<std::size_t>(rank)];
    }
  }
  return traffic;
}

LinkSpeed needed(const std::optional<LinkSpeed>& speed, bool is_needed, std::string_view which) {
  if (speed) return *speed;
  if (!is_needed) return {};
  throw ConfigError(concat("The speed of links ", which,
                           " is needed for this world and is not given: measure it with gossamer "
                           "bench links, or give latency and bandwidth; and check how many ranks "
                           "share a node."));
}

}  // namespace

LinkTable::LinkTable(const World& world, const Links& links) : world_(world) {
  if (world.size < 1 || world.node_size < 1 || world.size % world.node_size != 0) {
    throw ConfigError(concat("A world of ", world.size, " ranks with ", world.node_size,
                             " on each node is impossible; every node must have equally many."));
  }
  num_nodes_ = world.size / world.node_size;
  within_ = needed(links.within, world.node_size > 1, "within a node");
  between_ = needed(links.between, num_nodes_ > 1, "between nodes");
  receivers_say_ready_ = links.receivers_say_ready();
  if (links.regions.count() == 0) return;
  if (links.regions.num_nodes() != num_nodes_) {
    throw ConfigError(concat("The regions have ", links.regions.num_nodes(),
                             " nodes together, and the world has ", num_nodes_,
                             "; allowed: equally many (--world-size, --local-world-size)."));
  }
  regions_ = links.regions;
  region_of_node_ = regions_.region_of_nodes();
}

LinkSpeed LinkTable::speed(int link) const {
  if (is_within(link)) return within_;
  if (link < first_across()) return between_;
  const int place = (link - first_across()) % (num_nodes_ * regions_.count());
  const auto node = static_cast<std::size_t>(place / regions_.count());
  const auto other = static_cast<std::size_t>(place % regions_.count());
  const RegionPath& found = regions_.paths[static_cast<std::size_t>(region_of_node_[node])][other];
  // The node's own link already counts the computing time that these bytes take.
  return {.latency_s = found.latency_s, .bandwidth = found.bandwidth};
}

int LinkTable::region_of(int rank) const {
  return region_of_node_[static_cast<std::size_t>(rank / world_.node_size)];
}

bool LinkTable::crosses(int from, int to) const {
  return regions_.count() > 1 && region_of(from) != region_of(to);
}

const RegionPath& LinkTable::path(int from, int to) const {
  const auto& from_here = regions_.paths[static_cast<std::size_t>(region_of(from))];
  return from_here[static_cast<std::size_t>(region_of(to))];
}

int LinkTable::out_of_region(int from, int to) const {
  return first_across() + from / world_.node_size * regions_.count() + region_of(to);
}

int LinkTable::into_region(int from, int to) const {
  return first_across() + (num_nodes_ + to / world_.node_size) * regions_.count() + region_of(from);
}

bool LinkTable::leaves_rank(int link) const {
  const int first_between = 2 * world_.size;
  return link < world_.size || (link >= first_between && link < first_between + num_nodes_);
}

bool LinkTable::leaves_region(int link) const {
  return link >= first_across() && link < first_across() + num_nodes_ * regions_.count();
}

int LinkTable::account(int link) const {
  if (is_within(link)) return link % world_.size;
  const int first = 2 * world_.size;
  if (link >= first_across()) {
    return first + (link - first_across()) / regions_.count() % num_nodes_;
  }
  return first + (link - first) % num_nodes_;
}

bool LinkTable::same_node(int a, int b) const {
  return a / world_.node_size == b / world_.node_size;
}

int LinkTable::out_of_node(int rank) const { return 2 * world_.size + rank / world_.node_size; }

double LinkTable::latency_s(int from, int to) const {
  if (same_node(from, to)) return within_.latency_s;
  return crosses(from, to) ? path(from, to).latency_s : between_.latency_s;
}

double LinkTable::ready_s(int from, int to) const {
  return receivers_say_ready_ && !same_node(from, to) ? latency_s(to, from) : 0.0;
}

Traffic traffic_of(const Round& round, const LinkTable& links) {
  if (round.node_size > 1) return index_of(two_levels(round, links), links.world().size);
  std::vector<Transfer> transfers;
  for (auto& [transfer, ranks] : between_places(round, links)) {
    transfer.members = ranks;
    transfer.waiters = ranks;
    transfers.push_back(std::move(transfer));
  }
  return index_of(std::move(transfers), links.world().size);
}

Traffic all_reduce_traffic(const LinkTable& links) {
  const Round everybody{.edges = {averaging_edge(ranks_of_node(0, links.world().size))}};
  return traffic_of(everybody, links);
}

void scale(Traffic& traffic, double messages, double others) {
  for (Transfer& transfer : traffic.transfers) {
    for (Flow& flow : transfer.flows) flow.share *= transfer.is_message ? messages : others;
  }
}

Traffic together(const std::vector<Traffic>& parts, int world_size) {
  std::vector<Transfer> all;
  for (const Traffic& part : parts) {
    const int first = static_cast<int>(all.size());
    for (Transfer transfer : part.transfers) {
      for (int& next : transfer.next) next += first;
      all.push_back(std::move(transfer));
    }
  }
  return index_of(std::move(all), world_size);
}

}  // namespace gossamer::apps

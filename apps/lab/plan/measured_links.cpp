#include "apps/lab/plan/measured_links.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>

#include "apps/lab/bench/statistics.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

/// The median of some links; nothing of no links.
std::optional<LinkSpeed> middle(const std::vector<LinkSpeed>& speeds) {
  std::vector<double> latencies;
  std::vector<double> bandwidths;
  std::vector<double> streams;
  std::vector<double> loss_rates;
  for (const LinkSpeed& speed : speeds) {
    latencies.push_back(speed.latency_s);
    bandwidths.push_back(speed.bandwidth);
    if (!speed.num_streams) continue;
    streams.push_back(static_cast<double>(*speed.num_streams));
    loss_rates.push_back(*speed.loss_rate);
  }
  if (latencies.empty()) return std::nullopt;
  LinkSpeed speed{.latency_s = median(latencies), .bandwidth = median(bandwidths)};
  if (streams.empty()) return speed;
  speed.num_streams = std::llround(median(streams));
  speed.loss_rate = median(loss_rates);
  return speed;
}

std::size_t node_of(int rank, const World& world) {
  return static_cast<std::size_t>(rank / world.node_size);
}

/// The medians of the links between every two nodes, [a][b] with a < b; nothing where two nodes
/// have no pair.
using NodeLinks = std::vector<std::vector<std::optional<LinkSpeed>>>;
NodeLinks node_links(const std::vector<PairFigures>& pairs, const World& world) {
  const auto num_nodes = static_cast<std::size_t>(world.size / world.node_size);
  std::vector<std::vector<std::vector<LinkSpeed>>> all(
      num_nodes, std::vector<std::vector<LinkSpeed>>(num_nodes));
  for (const PairFigures& each : pairs) {
    const std::size_t one = node_of(each.pair.first, world);
    const std::size_t other = node_of(each.pair.second, world);
    all[std::min(one, other)][std::max(one, other)].push_back(each.speed);
  }
  NodeLinks links(num_nodes);
  for (std::size_t a = 0; a < num_nodes; ++a) {
    for (const auto& speeds : all[a]) links[a].push_back(middle(speeds));
  }
  return links;
}

/// The region of each node: a new one begins at a node that is far from some node of the region
/// before it.
std::vector<std::size_t> group_near_nodes(const NodeLinks& links) {
  LinkSpeed best{.latency_s = 1e9, .bandwidth = 0.0};
  for (std::size_t a = 0; a < links.size(); ++a) {
    for (std::size_t b = a + 1; b < links.size(); ++b) {
      best.latency_s = std::min(best.latency_s, links[a][b]->latency_s);
      best.bandwidth = std::max(best.bandwidth, links[a][b]->bandwidth);
    }
  }
  const auto are_near = [&](std::size_t a, std::size_t b) {
    const LinkSpeed& link = *links[a][b];
    return link.latency_s <= std::max(1e-3, 2.0 * best.latency_s) &&
           link.bandwidth >= best.bandwidth / 2.0;
  };
  std::vector<std::size_t> regions = {0};
  std::size_t first = 0;
  for (std::size_t node = 1; node < links.size(); ++node) {
    bool is_near = true;
    for (std::size_t other = first; other < node; ++other) is_near &= are_near(other, node);
    if (!is_near) first = node;
    regions.push_back(is_near ? regions.back() : regions.back() + 1);
  }
  return regions;
}

}  // namespace

Regions regions_of(const std::vector<PairFigures>& pairs, const World& world) {
  const NodeLinks links = node_links(pairs, world);
  const std::size_t num_nodes = links.size();
  for (std::size_t a = 0; a < num_nodes; ++a) {
    for (std::size_t b = a + 1; b < num_nodes; ++b) {
      if (!links[a][b]) return {};
    }
  }
  const std::vector<std::size_t> region_of = group_near_nodes(links);
  const std::size_t num = region_of.back() + 1;
  if (num < 2 || num > static_cast<std::size_t>(kMostRegions)) return {};
  Regions regions;
  for (std::size_t region = 0; region < num; ++region) {
    const auto nodes = std::ranges::equal_range(region_of, region);
    const auto first = nodes.begin() - region_of.begin();
    const auto last = first + std::ssize(nodes) - 1;
    regions.list.push_back(
        {.name = first == last ? concat("node ", first) : concat("nodes ", first, " to ", last),
         .num_nodes = static_cast<int>(std::ssize(nodes))});
  }
  const RegionPath fastest{.latency_s = 0.0, .bandwidth = std::numeric_limits<double>::max()};
  regions.paths.assign(num, std::vector<RegionPath>(num, fastest));
  for (std::size_t a = 0; a < num_nodes; ++a) {
    for (std::size_t b = a + 1; b < num_nodes; ++b) {
      RegionPath& path = regions.paths[region_of[a]][region_of[b]];
      path.latency_s = std::max(path.latency_s, links[a][b]->latency_s);
      path.bandwidth = std::min(path.bandwidth, links[a][b]->bandwidth);
      regions.paths[region_of[b]][region_of[a]] = path;
    }
  }
  for (std::size_t region = 0; region < num; ++region) regions.paths[region][region] = {};
  return regions;
}

Links links_of(const std::vector<PairFigures>& pairs, const World& world) {
  Links links{.regions = regions_of(pairs, world)};
  const std::vector<int> region_of = links.regions.region_of_nodes();
  std::vector<LinkSpeed> within;
  std::vector<LinkSpeed> between;
  std::vector<LinkSpeed> across;
  for (const PairFigures& each : pairs) {
    const std::size_t one = node_of(each.pair.first, world);
    const std::size_t other = node_of(each.pair.second, world);
    const bool crosses = !region_of.empty() && region_of[one] != region_of[other];
    (each.is_within ? within : crosses ? across : between).push_back(each.speed);
  }
  links.within = middle(within);
  links.between = middle(between);
  if (between.empty() && !across.empty()) {
    links.between = *std::ranges::max_element(across, {}, &LinkSpeed::bandwidth);
  }
  return links;
}

}  // namespace gossamer::apps

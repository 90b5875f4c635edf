#include "apps/lab/plan/places.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/options.hpp"
#include "base/registry.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

// The largest world, in ranks, in which the rounds to the target are counted by following them.
constexpr int kFollowedRanks = 32;
constexpr double kNoGap = 1e-12;
// The longest period that a plan for several regions tries, in steps.
constexpr int kLongestRegionPeriod = 256;
// What the far averages in pairs follow: pairs for every number of ranks, and after some rounds all
// have met.
constexpr std::string_view kPairTopology = "base-k";

/// Like rounds_to(), which takes many seconds where mixing is slow. In a large world this function
/// looks for an exact mean instead. Where there is none, the rounds follow from the spectral gap;
/// for 64 ranks this estimate is off by 5 % at most.
std::optional<RoundCount> rounds_to_target(const Topology& topology, int world_size) {
  if (world_size <= kFollowedRanks) return rounds_to(topology, world_size, kPlannedTarget);
  if (const auto exact = exact_after(topology, world_size)) return RoundCount{.rounds = *exact};
  if (!topology.period()) return rounds_to(topology, world_size, kPlannedTarget);
  const auto gap = spectral_gap(topology, world_size);
  if (!gap || *gap <= kNoGap || *gap >= 1.0) return std::nullopt;
  const double periods = std::log(kPlannedTarget) / std::log1p(-*gap);
  const double rounds = std::ceil(static_cast<double>(*topology.period()) * periods);
  return RoundCount{.rounds = static_cast<std::int64_t>(rounds), .estimated = true};
}

bool is_worth_a_row(const TopologyVariant& variant, const World& world) {
  const TopologyEntry* entry = find_row(topology_table(), variant.name);
  if (entry == nullptr || !entry->fits(world)) return false;
  if (variant.name != "hierarchical") return world.size > 2;
  // On one node, and with one rank on each, it is another topology under a second name.
  const int nodes = world.size / world.node_size;
  if (nodes < 3 || world.node_size < 2) return false;
  const bool needs_power = variant.option == "leaders: one-peer-exp";
  return !needs_power || (nodes & (nodes - 1)) == 0;
}

/// The variants that only a cluster in several regions needs.
void add_region_variants(const StepModel& model, std::vector<TopologyVariant>& variants) {
  const World& world = model.world;
  const Regions& regions = model.links.regions;
  if (regions.count() < 2) return;
  const int region_size = world.size / regions.count();
  const bool has_hosts = world.node_size > 1 && world.size / world.node_size > 2;
  const bool has_region_nodes =
      regions.are_equal() && region_size > 1 && region_size != world.node_size;
  for (int every = 1; every <= kLongestRegionPeriod; every *= 4) {
    for (const char* const leaders : {"leaders: ring", "leaders: complete"}) {
      TopologyVariant variant{.name = "hierarchical",
                              .option = leaders,
                              .second = concat("leaders_every: ", every),
                              .whole_periods = true};
      if (has_hosts && every > 1) variants.push_back(variant);
      variant.local_size = region_size;
      if (has_region_nodes) variants.push_back(variant);
    }
  }
}

/// The topologies that fit the world. Of those that are alike, base-k comes first, because it fits
/// every number of ranks.
std::vector<TopologyVariant> variants_for(const PlanOptions& options) {
  const StepModel& model = options.model;
  std::vector<TopologyVariant> variants;
  for (const auto& table : {topology_table(), options.own.topologies}) {
    for (const TopologyEntry& entry : table) {
      if (entry.needs_options || !entry.fits(model.world)) continue;
      variants.push_back({.name = std::string(entry.name)});
    }
  }
  std::ranges::stable_partition(
      variants, [](const TopologyVariant& each) { return each.name == kPairTopology; });
  for (const auto& [name, option] :
       {std::pair("base-k", "k: 3"), std::pair("hierarchical", "leaders: one-peer-exp"),
        std::pair("hierarchical", "leaders: complete")}) {
    const TopologyVariant variant{.name = name, .option = option};
    if (is_worth_a_row(variant, model.world)) variants.push_back(variant);
  }
  add_region_variants(model, variants);
  return variants;
}

/// The topology of a variant, read as training will read it.
std::shared_ptr<const Topology> topology_of(const TopologyVariant& variant,
                                            const PlanOptions& options) {
  World world = options.model.world;
  if (variant.local_size > 0) world.node_size = variant.local_size;
  const Options root(parse_yaml(concat("topology: ", variant.section()), "plan"));
  return read_topology(root.section("topology"), world, std::nullopt, options.own.topologies);
}

}  // namespace

std::string TopologyVariant::label() const {
  std::string text = name;
  if (local_size > 0) text += " by region";
  for (const std::string_view part : {option, second}) {
    if (!part.empty()) text += concat(", ", part);
  }
  return text;
}

std::string TopologyVariant::section() const {
  std::string text = concat("{name: ", name);
  for (const std::string_view part : {option, second}) {
    if (!part.empty()) text += concat(", ", part);
  }
  return text + "}";
}

std::vector<Place> places_for(const PlanOptions& options) {
  std::vector<Place> places;
  for (TopologyVariant& variant : variants_for(options)) {
    auto topology = topology_of(variant, options);
    auto rounds = rounds_to_target(*topology, options.model.world.size);
    places.push_back(
        {.variant = std::move(variant), .topology = std::move(topology), .rounds = rounds});
  }
  return places;
}

const Place* pair_place(const std::vector<Place>& places) {
  const auto found = std::ranges::find_if(places, [](const Place& place) {
    return place.variant.name == kPairTopology && place.variant.option.empty();
  });
  return found != places.end() ? &*found : nullptr;
}

}  // namespace gossamer::apps

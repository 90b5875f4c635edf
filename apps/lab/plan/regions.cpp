#include "apps/lab/plan/regions.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/text.hpp"

namespace gossamer::apps {
namespace {

constexpr TextOption kRegionName{"name", "the name of a region"};
constexpr IntegerOption kNumNodes{
    "nodes", "nodes of a region", {.fallback = 1, .min = 1, .max = 4096}};
constexpr NumberOption kPathLatency{
    "latency_s", "seconds of a short message", {.min = 0.0, .max = 1e3}};
constexpr NumberOption kPathBandwidth{"bandwidth_bytes_per_s",
                                      "bytes that a region sends in a second",
                                      {.min = 0.0, .max = 1e15, .above_min = true}};

std::vector<Region> read_list(const Options& section) {
  std::vector<Region> list;
  for (const Options& each : section.named_sections("regions")) {
    Region region{.name = each.read(kRegionName)};
    region.num_nodes = static_cast<int>(each.read(kNumNodes));
    if (std::ranges::find(list, region.name, &Region::name) != list.end()) {
      each.fail("name", concat("is ", region.name, " a second time, allowed: a name for each"));
    }
    list.push_back(std::move(region));
  }
  if (list.size() > kMostRegions) {
    section.fail("regions", concat("has ", list.size(), " regions, allowed: 1 to ", kMostRegions));
  }
  return list;
}

/// The regions of `between: [a, b]`.
std::pair<std::size_t, std::size_t> read_ends(const Options& path,
                                              const std::vector<Region>& list) {
  std::vector<std::string> names;
  for (const Region& region : list) names.push_back(region.name);
  std::vector<std::size_t> ends;
  for (const Options& end : path.named_sections("between")) {
    const std::string name = end.read(kRegionName);
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) {
      path.fail("between", concat("names ", name, ", allowed: ", join(names, ", ")));
    }
    ends.push_back(static_cast<std::size_t>(found - names.begin()));
  }
  if (ends.size() != 2 || ends[0] == ends[1]) {
    path.fail("between", concat("needs two different regions, allowed: ", join(names, ", ")));
  }
  return {ends[0], ends[1]};
}

}  // namespace

int Regions::num_nodes() const {
  int sum = 0;
  for (const Region& region : list) sum += region.num_nodes;
  return sum;
}

bool Regions::are_equal() const {
  return count() > 1 && std::ranges::all_of(list, [&](const Region& region) {
           return region.num_nodes == list.front().num_nodes;
         });
}

std::vector<int> Regions::region_of_nodes() const {
  std::vector<int> regions;
  for (int i = 0; i < count(); ++i) {
    const int nodes = list[static_cast<std::size_t>(i)].num_nodes;
    regions.insert(regions.end(), static_cast<std::size_t>(nodes), i);
  }
  return regions;
}

Regions read_regions(const Options& section) {
  Regions regions;
  if (!section.has("regions")) {
    if (section.has("across")) section.fail("across", "is given without regions");
    return regions;
  }
  regions.list = read_list(section);
  const std::size_t num = regions.list.size();
  regions.paths.assign(num, std::vector<RegionPath>(num));
  if (num == 1) return regions;
  std::vector<std::vector<bool>> given(num, std::vector<bool>(num, false));
  for (const Options& each : section.named_sections("across")) {
    const auto [a, b] = read_ends(each, regions.list);
    if (given[a][b]) each.fail("between", "names this pair a second time");
    given[a][b] = given[b][a] = true;
    const RegionPath path{.latency_s = each.read(kPathLatency),
                          .bandwidth = each.read(kPathBandwidth)};
    regions.paths[a][b] = regions.paths[b][a] = path;
  }
  for (std::size_t a = 0; a < num; ++a) {
    for (std::size_t b = a + 1; b < num; ++b) {
      if (given[a][b]) continue;
      section.fail("across", concat("lacks the pair ", regions.list[a].name, ", ",
                                    regions.list[b].name, "; allowed: every pair once"));
    }
  }
  return regions;
}

}  // namespace gossamer::apps

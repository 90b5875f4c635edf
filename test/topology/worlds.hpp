#pragma once
// The worlds that the topology tests go through: every row of the table, 1 to 17 ranks, every
// number of ranks per node that divides them.

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "topology/registry.hpp"

namespace gossamer {

struct TopologyCase {
  std::string_view topology;
  World world;

  [[nodiscard]] std::unique_ptr<Topology> build() const { return make_topology(topology, world); }
};

inline std::string to_string(const TopologyCase& c) {
  return std::string(c.topology) + "/n=" + std::to_string(c.world.size) +
         "/local=" + std::to_string(c.world.node_size);
}

inline void PrintTo(const TopologyCase& c, std::ostream* out) { *out << to_string(c); }

/// Whether a topology depends on how ranks are dealt to nodes.
inline bool looks_at_nodes(std::string_view topology) {
  return topology == "alternating-exp-ring" || topology.starts_with("hierarchical");
}

/// The cases that the table says can be built, or the others.
inline std::vector<TopologyCase> topology_cases(bool fit) {
  constexpr int kLargestWorld = 17;
  std::vector<TopologyCase> cases;
  for (const TopologyEntry& entry : topology_table()) {
    if (entry.needs_options) continue;
    for (int size = 1; size <= kLargestWorld; ++size) {
      for (int local = 1; local <= size; ++local) {
        const World world{.rank = 0, .size = size, .node_size = local};
        if (local > 1 && local < size && !looks_at_nodes(entry.name)) continue;
        if (size % local == 0 && entry.fits(world) == fit) cases.push_back({entry.name, world});
      }
    }
  }
  return cases;
}

/// Every row of the table that can be built without options.
inline std::vector<std::string_view> topologies_to_test() {
  std::vector<std::string_view> names;
  for (const TopologyEntry& entry : topology_table()) {
    if (!entry.needs_options) names.push_back(entry.name);
  }
  return names;
}

/// Only letters, digits and underscores are allowed in the names of tests.
inline std::string test_name(const testing::TestParamInfo<std::string_view>& info) {
  std::string name(info.param);
  std::ranges::replace(name, '-', '_');
  return name;
}

/// One test per topology; each goes through all worlds.
class TopologyTest : public testing::TestWithParam<std::string_view> {
 protected:
  template <class Check>
  static void for_each_case(bool fit, const Check& check) {
    for (const TopologyCase& c : topology_cases(fit)) {
      if (c.topology != GetParam()) continue;
      SCOPED_TRACE(to_string(c));
      check(c);
    }
  }
};

}  // namespace gossamer

#pragma once
// The worlds that the topology tests go through: every row of the table, 1 to 17 ranks, every
// number of ranks per node that divides them.

#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "gossamer/topology/registry.hpp"

namespace gossamer {

struct TopologyCase {
  std::string_view topology;
  World world;

  [[nodiscard]] std::unique_ptr<Topology> build() const { return make_topology(topology, world); }
};

inline std::string to_string(const TopologyCase& c) {
  return std::string(c.topology) + "/n=" + std::to_string(c.world.size) +
         "/local=" + std::to_string(c.world.local_size);
}

inline void PrintTo(const TopologyCase& c, std::ostream* out) { *out << to_string(c); }

/// Only letters, digits and underscores are allowed in the names of tests.
inline std::string test_name(const testing::TestParamInfo<TopologyCase>& info) {
  std::string name;
  for (const char c : to_string(info.param)) {
    if (c == '=') continue;
    name += c == '-' || c == '/' ? '_' : c;
  }
  return name;
}

/// The cases that the table says can be built, or the others.
inline std::vector<TopologyCase> topology_cases(bool fit) {
  constexpr int kLargestWorld = 17;
  std::vector<TopologyCase> cases;
  for (const TopologyEntry& entry : topology_table()) {
    for (int size = 1; size <= kLargestWorld; ++size) {
      for (int local = 1; local <= size; ++local) {
        const World world{.rank = 0, .size = size, .local_rank = 0, .local_size = local};
        if (size % local == 0 && entry.fits(world) == fit) cases.push_back({entry.name, world});
      }
    }
  }
  return cases;
}

}  // namespace gossamer

#pragma once
// The table of topologies. Adding one: write its file, declare its factory in registry.cpp, add a
// row there.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gossamer/core/base/options.hpp"
#include "gossamer/core/base/types.hpp"
#include "gossamer/topology/topology.hpp"

namespace gossamer {

struct TopologyOption {
  std::string_view name;
  std::string_view summary;
};

struct TopologyEntry {
  std::string_view name;
  std::string_view summary;
  /// The keys that `make` reads beside `name`.
  std::span<const TopologyOption> options;
  /// The world sizes that work, in words: `powers of two`.
  std::string_view sizes;
  /// Whether a world can be built, without building it.
  bool (*fits)(const World& world);
  std::unique_ptr<Topology> (*make)(const World& world, const Options& options);
};

std::span<const TopologyEntry> topology_table();
std::vector<std::string> topology_names();

/// Builds a topology by name (either spelling). Throws ConfigError when the name is unknown, or
/// when the world size is impossible: the message names the sizes that work and the topologies that
/// would fit.
std::unique_ptr<Topology> make_topology(std::string_view name, const World& world,
                                        const Options& options = Options());

}  // namespace gossamer

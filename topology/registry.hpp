#pragma once
// The table of topologies. To add a topology: write its file, declare its factory in registry.cpp,
// add a row there.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.hpp"
#include "base/registry.hpp"
#include "base/types.hpp"
#include "topology/topology.hpp"

namespace gossamer {

struct TopologyEntry;

/// Makes a topology. `own`: a user's rows, for a topology with others inside.
using TopologyFactory = std::unique_ptr<Topology>(const World& world, const Options& options,
                                                  std::span<const TopologyEntry> own);

struct TopologyEntry {
  std::string_view name;
  std::string_view summary;
  /// The keys that the topology reads beside `name`.
  std::span<const OptionEntry> options;
  /// True: the configuration must give at least one option.
  bool needs_options = false;
  /// The world sizes that work, in words, as `powers of two`.
  std::string_view sizes;
  /// Whether the topology exists for `world`.
  bool (*fits)(const World& world);
  TopologyFactory* make;
};

/// A topology made of other topologies. Its key stands in the section in place of `name`.
struct WrapperEntry {
  std::string_view name;
  std::string_view summary;
  /// An example of the value of the key.
  std::string_view example;
  /// The keys of the section of the wrapper.
  std::span<const OptionEntry> options;
  /// The options of the factory are the section that holds the key.
  TopologyFactory* make;
};

std::span<const TopologyEntry> topology_table();
std::span<const WrapperEntry> wrapper_table();
// In the functions below, `own` holds a user's rows, whose names stand behind the names of the
// table.

std::vector<std::string> topology_names(std::span<const TopologyEntry> own = {});

inline constexpr ChoiceOption kTopologyName{
    "name", "the peers of each round", {.fallback = "ring", .names = [] {
                                          return topology_names();
                                        }}};

/// Builds a topology by name; `-` and `_` are the same. Throws ConfigError when the name is
/// unknown, or when the world size is impossible. The message then names the sizes that work and
/// the topologies that fit.
std::unique_ptr<Topology> make_topology(std::string_view name, const World& world,
                                        const Options& options = Options(),
                                        std::span<const TopologyEntry> own = {});

/// Builds the topology of a section: `name: ring` with options, or one wrapper as
/// `alternate: [a, b]`. An empty section means `fallback`; without a fallback it is an error.
/// Throws ConfigError, also where no run can follow the topology (check.hpp).
std::unique_ptr<Topology> read_topology(const Options& section, const World& world,
                                        const std::optional<std::string>& fallback = std::nullopt,
                                        std::span<const TopologyEntry> own = {});

/// Makes a part of another topology. The part alone need not be fit for a run.
std::unique_ptr<Topology> read_part(const Options& section, const World& world,
                                    std::span<const TopologyEntry> own,
                                    const std::optional<std::string>& fallback = std::nullopt);

}  // namespace gossamer

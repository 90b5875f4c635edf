#include "topology/registry.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "base/error.hpp"
#include "base/registry.hpp"
#include "base/text.hpp"
#include "topology/check.hpp"
#include "topology/topology_options.hpp"

namespace gossamer {

TopologyFactory make_complete;
TopologyFactory make_ring;
TopologyFactory make_one_peer_exp;
TopologyFactory make_alternating_exp_ring;
TopologyFactory make_base_k;
TopologyFactory make_random_matching;
TopologyFactory make_hierarchical;
TopologyFactory make_local_sgd;
TopologyFactory make_star;
TopologyFactory make_grid;
TopologyFactory make_torus;
TopologyFactory make_static_ring;
TopologyFactory make_static_exp;
TopologyFactory make_directed_one_peer_exp;
TopologyFactory make_shift_one;
TopologyFactory make_chain;
TopologyFactory make_binary_tree;
TopologyFactory make_from_file;
TopologyFactory make_alternate;
TopologyFactory make_every;
TopologyFactory make_phases;
bool one_peer_exp_fits(const World& world);
bool alternating_exp_ring_fits(const World& world);
bool hierarchical_fits(const World& world);

namespace {

bool always_fits(const World& world) { return world.size >= 1; }

constexpr std::array kTable = {
    TopologyEntry{.name = "complete",
                  .summary = "all ranks average in every round; the exact mean, the most traffic",
                  .options = {},
                  .sizes = "every world size",
                  .fits = always_fits,
                  .make = make_complete},
    TopologyEntry{.name = "ring",
                  .summary = "pairs of neighbours on a circle, right and left in turn",
                  .options = {},
                  .sizes = "every world size",
                  .fits = always_fits,
                  .make = make_ring},
    TopologyEntry{.name = "one-peer-exp",
                  .summary = "pairs at distances 1, 2, 4, ...; the exact mean after log2(n) rounds",
                  .options = {},
                  .sizes = "powers of two",
                  .fits = one_peer_exp_fits,
                  .make = make_one_peer_exp},
    TopologyEntry{.name = "alternating-exp-ring",
                  .summary = "in turn, half of the nodes average with a node at distance 1, 2, 4, "
                             "..., and the others average inside",
                  .options = {},
                  .sizes = "1, 2, 4, 8, ... nodes with equally many ranks on each",
                  .fits = alternating_exp_ring_fits,
                  .make = make_alternating_exp_ring},
    TopologyEntry{.name = "base-k",
                  .summary = "groups of at most k + 1 ranks; the exact mean after about 2 log(n) / "
                             "log(k + 1) rounds",
                  .options = base_k::kOptions,
                  .sizes = "every world size",
                  .fits = always_fits,
                  .make = make_base_k},
    TopologyEntry{.name = "random-matching",
                  .summary = "pairs drawn anew in every round",
                  .options = random_matching::kOptions,
                  .sizes = "every world size",
                  .fits = always_fits,
                  .make = make_random_matching},
    TopologyEntry{
        .name = "shift-one",
        .summary = "pairs across the two halves of the ranks, the next peer in each round",
        .options = {},
        .sizes = "every world size",
        .fits = always_fits,
        .make = make_shift_one},
    TopologyEntry{.name = "hierarchical",
                  .summary = "the ranks of a node average in every round; nodes mix along another "
                             "topology, through one rank each",
                  .options = hierarchical::kOptions,
                  .sizes = "equally many ranks on every node",
                  .fits = hierarchical_fits,
                  .make = make_hierarchical},
    TopologyEntry{.name = "local-sgd",
                  .summary = "rounds without communication, then all average",
                  .options = local_sgd::kOptions,
                  .sizes = "every world size",
                  .fits = always_fits,
                  .make = make_local_sgd},
    TopologyEntry{.name = "star",
                  .summary = "rank 0 averages with each other rank in turn",
                  .options = {},
                  .sizes = "every world size",
                  .fits = always_fits,
                  .make = make_star},
    TopologyEntry{.name = "grid",
                  .summary = "pairs of neighbours in rows and columns",
                  .options = lattice::kOptions,
                  .sizes = "every world size",
                  .fits = always_fits,
                  .make = make_grid},
    TopologyEntry{.name = "torus",
                  .summary = "as grid, with the ends of rows and columns joined",
                  .options = lattice::kOptions,
                  .sizes = "every world size",
                  .fits = always_fits,
                  .make = make_torus},
    TopologyEntry{.name = "static-ring",
                  .summary = "both neighbours on a circle at once",
                  .options = {},
                  .sizes = "every world size",
                  .fits = always_fits,
                  .make = make_static_ring},
    TopologyEntry{.name = "chain",
                  .summary = "both neighbours in a row at once",
                  .options = {},
                  .sizes = "every world size",
                  .fits = always_fits,
                  .make = make_chain},
    TopologyEntry{.name = "binary-tree",
                  .summary = "the parent and both children in a binary tree, all at once",
                  .options = {},
                  .sizes = "every world size",
                  .fits = always_fits,
                  .make = make_binary_tree},
    TopologyEntry{.name = "static-exp",
                  .summary = "the ranks 1, 2, 4, ... before, all at once; directed",
                  .options = {},
                  .sizes = "every world size",
                  .fits = always_fits,
                  .make = make_static_exp},
    TopologyEntry{.name = "directed-one-peer-exp",
                  .summary = "the rank 1, 2, 4, ... before, one per round; directed",
                  .options = {},
                  .sizes = "every world size",
                  .fits = always_fits,
                  .make = make_directed_one_peer_exp},
    TopologyEntry{.name = "from-file",
                  .summary = "the rounds, or the graph, of a YAML or JSON file",
                  .options = from_file::kOptions,
                  .needs_options = true,
                  .sizes = "the world size of the file",
                  .fits = always_fits,
                  .make = make_from_file},
};

constexpr std::array kWrappers = {
    WrapperEntry{"alternate",
                 "a list of topologies, in turn",
                 "[ring, {name: base-k, k: 2}]",
                 {},
                 make_alternate},
    WrapperEntry{"every", "a topology in every H-th round only", "{base: one-peer-exp, period: 4}",
                 every::kOptions, make_every},
    WrapperEntry{"phases", "a list of topologies, one after the other",
                 "[{until: 1000, topology: complete}, {topology: ring}]", phases::kOptions,
                 make_phases},
};

[[noreturn]] void refuse(const Options& options, const std::string& what) {
  // The name usually stands in the same section as the options; then the error can say where.
  if (options.has("name")) options.fail("name", what);
  throw ConfigError(what);
}

std::vector<std::string> fitting_names(const World& world, std::span<const TopologyEntry> own) {
  std::vector<std::string> names;
  for (const TopologyEntry& entry : with_own(topology_table(), own)) {
    if (entry.fits(world) && !entry.needs_options) names.emplace_back(entry.name);
  }
  return names;
}

/// World sizes that fit, next below and next above, with as many ranks per node.
std::vector<int> nearest_sizes(const TopologyEntry& entry, const World& world) {
  std::vector<int> sizes;
  World trial = world;
  for (trial.size = world.size - 1; trial.size >= 1; --trial.size) {
    if (!entry.fits(trial)) continue;
    sizes.push_back(trial.size);
    break;
  }
  // Far enough for powers of two, of ranks and of nodes.
  const std::int64_t end = 2 * (std::int64_t{world.size} + world.node_size);
  const std::int64_t limit = std::min<std::int64_t>(end, std::numeric_limits<int>::max());
  for (std::int64_t size = std::int64_t{world.size} + 1; size <= limit; ++size) {
    trial.size = static_cast<int>(size);
    if (!entry.fits(trial)) continue;
    sizes.push_back(trial.size);
    break;
  }
  return sizes;
}

[[noreturn]] void refuse_size(const TopologyEntry& entry, const World& world,
                              const Options& options, std::span<const TopologyEntry> own) {
  std::string what = concat(entry.name, " cannot be built for ", world.size, " ranks with ",
                            world.node_size, " on each node. It works for ", entry.sizes);
  const std::vector<int> sizes = nearest_sizes(entry, world);
  if (!sizes.empty()) what += concat("; the nearest: ", join(sizes, " and "), " ranks");
  what += concat(". Topologies that fit this world: ", join(fitting_names(world, own), ", "), ".");
  refuse(options, what);
}

}  // namespace

std::span<const TopologyEntry> topology_table() { return kTable; }

std::span<const WrapperEntry> wrapper_table() { return kWrappers; }

std::vector<std::string> topology_names(std::span<const TopologyEntry> own) {
  return names_of(with_own(topology_table(), own));
}

std::unique_ptr<Topology> make_topology(std::string_view name, const World& world,
                                        const Options& options,
                                        std::span<const TopologyEntry> own) {
  const auto rows = with_own(topology_table(), own);
  const TopologyEntry* entry = find_row(rows, name);
  if (entry == nullptr) refuse(options, unknown_name(rows, "topology", name));
  if (world.size < 1 || world.node_size < 1) {
    throw ConfigError(concat("A world of ", world.size, " ranks with ", world.node_size,
                             " on each node is impossible; there must be at least one of each."));
  }
  if (!entry->fits(world)) refuse_size(*entry, world, options, own);
  return entry->make(world, options, own);
}

std::unique_ptr<Topology> read_topology(const Options& section, const World& world,
                                        const std::optional<std::string>& fallback,
                                        std::span<const TopologyEntry> own) {
  auto topology = read_part(section, world, own, fallback);
  const auto obstacle = find_obstacle(*topology, world.size);
  if (!obstacle) return topology;
  for (const WrapperEntry& entry : kWrappers) {
    if (section.has(entry.name)) section.fail(entry.name, *obstacle);
  }
  refuse(section, *obstacle);
}

std::unique_ptr<Topology> read_part(const Options& section, const World& world,
                                    std::span<const TopologyEntry> own,
                                    const std::optional<std::string>& fallback) {
  std::vector<std::string> given;
  if (section.has("name")) given.emplace_back("name");
  const WrapperEntry* wrapper = nullptr;
  for (const WrapperEntry& entry : kWrappers) {
    if (!section.has(entry.name)) continue;
    given.emplace_back(entry.name);
    wrapper = &entry;
  }
  if (given.size() > 1) {
    section.fail(given[1], concat("stands beside ", given[0], ", allowed: one of name, ",
                                  join(names_of(kWrappers), ", ")));
  }
  if (wrapper != nullptr) return wrapper->make(world, section, own);
  return make_topology(section.read(kTopologyName, fallback, topology_names(own)), world, section,
                       own);
}

}  // namespace gossamer

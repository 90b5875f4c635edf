#include "gossamer/topology/registry.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "gossamer/core/base/error.hpp"
#include "gossamer/core/base/registry.hpp"
#include "gossamer/core/base/text.hpp"

namespace gossamer {

std::unique_ptr<Topology> make_complete(const World& world, const Options& options);
std::unique_ptr<Topology> make_ring(const World& world, const Options& options);
std::unique_ptr<Topology> make_one_peer_exp(const World& world, const Options& options);
bool one_peer_exp_fits(const World& world);
std::unique_ptr<Topology> make_alternating_exp_ring(const World& world, const Options& options);
bool alternating_exp_ring_fits(const World& world);

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
                  .summary = "half of the nodes average in pairs at distances 1, 2, 4, ..., the "
                             "others inside the node, in turn",
                  .options = {},
                  .sizes = "1, 2, 4, 8, ... nodes with equally many ranks on each",
                  .fits = alternating_exp_ring_fits,
                  .make = make_alternating_exp_ring},
};

[[noreturn]] void refuse(const Options& options, const std::string& what) {
  // The name usually stands in the same section as the options; then the error can say where.
  if (options.has("name")) options.fail("name", what);
  throw ConfigError(what);
}

std::vector<std::string> fitting_names(const World& world) {
  std::vector<std::string> names;
  for (const TopologyEntry& entry : kTable) {
    if (entry.fits(world)) names.emplace_back(entry.name);
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
  const std::int64_t end = 2 * (std::int64_t{world.size} + world.local_size);
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
                              const Options& options) {
  std::string what = concat(entry.name, " cannot be built for ", world.size, " ranks with ",
                            world.local_size, " on each node. It works for ", entry.sizes);
  const std::vector<int> sizes = nearest_sizes(entry, world);
  if (!sizes.empty()) what += concat("; the nearest: ", join(sizes, " and "), " ranks");
  what += concat(". Topologies that fit this world: ", join(fitting_names(world), ", "), ".");
  refuse(options, what);
}

}  // namespace

std::span<const TopologyEntry> topology_table() { return kTable; }

std::vector<std::string> topology_names() { return names_of(kTable); }

std::unique_ptr<Topology> make_topology(std::string_view name, const World& world,
                                        const Options& options) {
  const TopologyEntry* entry = find_row(kTable, name);
  if (entry == nullptr) refuse(options, unknown_name(kTable, "topology", name));
  if (world.size < 1 || world.local_size < 1) {
    throw ConfigError(concat("A world of ", world.size, " ranks with ", world.local_size,
                             " on each node is impossible; there must be at least one of each."));
  }
  if (!entry->fits(world)) refuse_size(*entry, world, options);
  return entry->make(world, options);
}

}  // namespace gossamer

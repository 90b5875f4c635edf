#include "python/src/module.hpp"
#include "python/src/options.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "topology/registry.hpp"
#include "topology/spectrum.hpp"
#include "topology/topology_picture.hpp"

namespace gossamer::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

/// A topology for a world, without a session.
struct WorldTopology {
  std::shared_ptr<const Topology> topology;
  int world_size = 1;
};

WorldTopology make(const std::string& yaml, int world_size, int node_size) {
  const Options root = given_options(yaml);
  const World world{0, world_size, node_size > 0 ? node_size : world_size};
  WorldTopology made{
      read_topology(root.named_section("topology"), world, std::nullopt, own_topologies()),
      world_size};
  root.reject_unknown();
  return made;
}

using Edges = std::vector<std::tuple<std::vector<int>, double>>;
using Arcs = std::vector<std::tuple<int, int, double>>;

/// Edges (ranks, weight), arcs (from, to, weight), and the size of nodes.
std::tuple<Edges, Arcs, int> parts_of(const Round& round) {
  Edges edges;
  for (const Edge& edge : round.edges) {
    edges.emplace_back(std::vector<int>(edge.ranks.begin(), edge.ranks.end()), edge.weight);
  }
  Arcs arcs;
  for (const Arc& arc : round.arcs) arcs.emplace_back(arc.from, arc.to, arc.weight);
  return {edges, arcs, round.node_size};
}

using Count = std::tuple<std::int64_t, bool>;

/// The spectral gap, the consensus rate, the round of the exact mean, and the rounds to a
/// thousandth, which may be estimated.
std::tuple<std::optional<double>, std::optional<double>, std::optional<std::int64_t>,
           std::optional<Count>>
speed_of(const WorldTopology& made) {
  const ConsensusSpeed speed = consensus_speed(*made.topology, made.world_size);
  std::optional<Count> count;
  if (const auto& found = speed.rounds_to_thousandth) count = {found->rounds, found->estimated};
  return {speed.spectral_gap, speed.consensus_rate, speed.exact_after, count};
}

}  // namespace

void add_topologies(nb::module_& module) {
  using Free = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<WorldTopology>(module, "WorldTopology")
      .def_prop_ro("name", [](const WorldTopology& made) { return made.topology->name(); })
      .def_prop_ro("world_size", [](const WorldTopology& made) { return made.world_size; })
      .def_prop_ro("period", [](const WorldTopology& made) { return made.topology->period(); })
      .def_prop_ro("directed", [](const WorldTopology& made) { return made.topology->directed(); })
      .def(
          "round",
          [](const WorldTopology& made, std::int64_t k) {
            return parts_of(made.topology->round(k));
          },
          "k"_a)
      .def(
          "picture",
          [](const WorldTopology& made, std::optional<std::int64_t> k) {
            return topology_picture(*made.topology, made.world_size, k);
          },
          "k"_a.none())
      .def("speed", &speed_of, Free())
      .def(
          "rounds_to",
          [](const WorldTopology& made, double factor) {
            const auto count = rounds_to(*made.topology, made.world_size, factor);
            return count ? std::optional(count->rounds) : std::nullopt;
          },
          "factor"_a = 1e-3, Free())
      .def(
          "distance_factor",
          [](const WorldTopology& made, std::int64_t num_rounds) {
            return distance_factor(*made.topology, made.world_size, num_rounds);
          },
          "num_rounds"_a, Free());
  module.def("make_topology", &make, "yaml"_a, "world_size"_a, "node_size"_a = 0, Free());
  module.def("topology_names", [] { return topology_names(); });
}

}  // namespace gossamer::python

#pragma once
// Draws the rounds of a topology as SVG text, which browsers, notebooks and HTML pages show.
//
// Every round is a square with the ranks on a circle. A pair of an edge is a line, a larger group
// is a shape, and an arc is an arrow from the sender to the receiver. Ranks that the round leaves
// alone are hollow. The elements have the classes `round`, `rank`, `edge` and `arc`.
//
// Thread safe: there is no state.

#include <cstdint>
#include <optional>
#include <string>

#include "topology/topology.hpp"

namespace gossamer {

/// Draws round `round`. Where `round` is null, draws all rounds of a period, at most the first 16.
/// Throws ConfigError for more than 512 ranks, because a reader could tell nothing from such a
/// picture.
std::string topology_picture(const Topology& topology, int world_size,
                             std::optional<std::int64_t> round = {});

}  // namespace gossamer

#pragma once
// The topology among the nodes of a topology of two levels.

#include <memory>

#include "topology/topology.hpp"

namespace gossamer {

/// Whether all rounds have two levels with the same nodes, as far as the first 64 rounds tell. The
/// topology `hierarchical` may have nodes of one rank.
bool has_fixed_nodes(const Topology& topology);

/// The rounds of `topology` among nodes, as rounds of one level over the nodes. round() throws
/// ConfigError if the round has nodes of another size than round 0.
std::shared_ptr<const Topology> between_nodes(std::shared_ptr<const Topology> topology);

}  // namespace gossamer

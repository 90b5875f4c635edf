#pragma once
// The lane of LaneMembers::kTree over a Communicator: one exchange with each peer, and a block of
// its own for each. Ranks wait for one another along the edges of a tree only, and so never in a
// circle. Protocol, errors and thread safety: lane.hpp.

#include <memory>
#include <vector>

#include "core/exchange/lane.hpp"
#include "core/exchange/lane_setup.hpp"
#include "topology/topology.hpp"

namespace gossamer {

/// The peers of every rank in a topology whose one round is a tree, ascending.
std::vector<std::vector<int>> tree_peers(const Topology& topology, int world_size);

/// The peers of this rank in the topology of `setup`.
std::vector<int> own_tree_peers(const LaneSetup& setup);

/// All that `setup` refers to must outlive the lane, and so must `setup`. Throws std::logic_error
/// unless there is a topology whose round is a tree (is_tree()).
std::unique_ptr<Lane> make_tree_lane(const LaneSetup& setup, const LaneSpec& spec);

}  // namespace gossamer

#pragma once
// The lane of LaneResult::kMix, kMean and kSum, and of kApart without a tree, over a Communicator.
// A round is an exchange with a peer, in a group, with several neighbours, or in two levels (inside
// a node, then between nodes). A lane sends straight from the block and receives into inboxes that
// it owns, except between ranks of one host, which read each other's memory (host_slots.hpp).
// Protocol, errors and thread safety: lane.hpp.

#include <memory>

#include "core/lanes/lane.hpp"
#include "core/lanes/lane_setup.hpp"
#include "core/lanes/peers.hpp"

namespace gossamer {

class HostMemory;

/// `peers` knows the ranks of every round. `memory`: where ranks of a host read each other's
/// blocks; null: the lane sends messages. `setup` and all that it refers to must outlive the lane,
/// and so must `peers`.
std::unique_ptr<CodedLane> make_peer_lane(const LaneSetup& setup, Peers& peers,
                                          const LaneSpec& spec, std::shared_ptr<HostMemory> memory);

}  // namespace gossamer

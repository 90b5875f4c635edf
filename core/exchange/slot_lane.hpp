#pragma once
// The lane of LaneResult::kMix and kApart whose ranks of one host read each other's blocks in
// HostSlots. Messages to ranks that are not reached are those of a PlainLane. Blocks of a group, or
// of a node, whose ranks share a host are added up by the pass that mixes them in. Protocol, errors
// and thread safety: lane.hpp.

#include <memory>

#include "core/exchange/host_slots.hpp"
#include "core/exchange/lane_setup.hpp"
#include "core/exchange/peers.hpp"

namespace gossamer {

/// Parameters as in PlainLane. All ranks make such lanes in the same order.
std::unique_ptr<Lane> make_slot_lane(const LaneSetup& setup, Peers& peers, const LaneSpec& spec,
                                     std::shared_ptr<HostMemory> memory);

}  // namespace gossamer

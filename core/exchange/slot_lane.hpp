#pragma once
// The lane of LaneResult::kMix and kApart whose ranks of one host read each other's blocks in
// HostSlots. To ranks that it cannot reach, the lane sends the messages of a PlainLane. Where the
// ranks of a group or a node share a host, the pass that mixes in their blocks also adds them up.
// Protocol, errors and thread safety: lane.hpp.

#include <memory>

#include "core/exchange/host_slots.hpp"
#include "core/exchange/lane_setup.hpp"
#include "core/exchange/peers.hpp"

namespace gossamer {

/// Parameters as in PlainLane. All ranks make such lanes in the same order.
std::unique_ptr<Lane> make_slot_lane(const LaneSetup& setup, Peers& peers, const LaneSpec& spec,
                                     std::shared_ptr<HostMemory> memory);

}  // namespace gossamer

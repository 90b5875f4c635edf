#pragma once
// The lane of LaneResult::kMix under a codec: peers and neighbours exchange encoded blocks. The
// update decodes them, and encodes the next block, in one pass (ExchangeWork::coding). Groups that
// sum their blocks send them plain. Protocol, errors and thread safety: lane.hpp.

#include <memory>

#include "core/exchange/grid_lane.hpp"
#include "core/exchange/lane_setup.hpp"
#include "core/exchange/peers.hpp"

namespace gossamer {

/// Needs setup.codec. `grid` is the grid of the next round. The other parameters are as in
/// PlainLane.
std::unique_ptr<Lane> make_coded_lane(const LaneSetup& setup, Peers& peers, const LaneSpec& spec,
                                      std::shared_ptr<const NextGrid> grid);

}  // namespace gossamer

#pragma once
// The lane of LaneResult::kSum under a codec that leaves out elements: a CodedSum of one phase. A
// rank sends its whole encoded block to all others at the same time. Protocol, errors and thread
// safety: lane.hpp.

#include <memory>

#include "core/exchange/lane.hpp"
#include "core/exchange/lane_setup.hpp"

namespace gossamer {

/// Needs setup.codec and two ranks or more. What the parameters refer to must outlive the lane.
std::unique_ptr<Lane> make_gathered_sum_lane(const LaneSetup& setup, const LaneSpec& spec);

}  // namespace gossamer

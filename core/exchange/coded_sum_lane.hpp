#pragma once
// The lane of LaneResult::kSum under a codec: a CodedSum between all ranks of a Communicator.
//
// Phase 1 has n - 1 exchanges, one after the other: in the i-th one a rank sends to the i-th rank
// after it. In phase 2 a rank sends one message to all others at the same time. The two phases use
// different communicators: with a single one, the messages of the next bucket's phase 1 would have
// to wait for the end of this bucket's. Work between the phases runs on the communicator's stream.
// Only accumulate_residual() reads the sent block once it is encoded, so the lane does not look for
// writes to it. Protocol, errors and thread safety: lane.hpp.

#include <memory>

#include "core/exchange/lane.hpp"
#include "core/exchange/lane_setup.hpp"

namespace gossamer {

/// The communicators of the two phases; both have all ranks, in the same order.
struct SumCommunicators {
  Communicator& shards;
  Communicator& results;
};

/// Needs a setup.codec that does not leave out elements, and two ranks or more. What the parameters
/// refer to must outlive the lane.
std::unique_ptr<Lane> make_coded_sum_lane(const LaneSetup& setup,
                                          const SumCommunicators& communicators,
                                          const LaneSpec& spec);

}  // namespace gossamer

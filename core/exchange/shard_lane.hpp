#pragma once
// The lanes of LaneResult::kGather and kShardSum over a Communicator. Every rank has a shard of a
// block (shard.hpp). A gather gives all ranks the shards of all; a shard sum gives every rank the
// sum of its own shard. Protocol, errors and thread safety: lane.hpp.

#include <memory>

#include "core/exchange/lane.hpp"
#include "core/exchange/lane_setup.hpp"

namespace gossamer {

/// `spec.result` is one of the two. All that `setup` refers to must outlive the lane, and so must
/// `setup`.
std::unique_ptr<Lane> make_shard_lane(const LaneSetup& setup, const LaneSpec& spec);

}  // namespace gossamer

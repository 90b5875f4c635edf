#pragma once
// The lane of LaneRounds::kGather over a Communicator: every rank fills its own part of a block,
// and receives the parts of all others into the same block. Protocol, errors and thread safety:
// lane.hpp.

#include <cstdint>
#include <memory>

#include "core/peer_lane.hpp"

namespace gossamer {

/// Elements [first, first + numel) of a block.
struct Shard {
  std::int64_t first = 0;
  std::int64_t numel = 0;
};

/// The shard of member `place` of `count`: shards begin at cache lines, and differ by one at most.
Shard shard_of(std::int64_t numel, DType dtype, int place, int count);

/// All that `setup` refers to must outlive the lane, and so must `setup`.
std::unique_ptr<Lane> make_gather_lane(const PeerLanes::Setup& setup, const LaneSpec& spec);

}  // namespace gossamer

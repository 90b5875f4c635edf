#pragma once
// The surroundings of the lanes of one rank. The factory (peer_lanes.hpp) keeps them for all its
// lanes.

#include <memory>

#include "base/stream.hpp"
#include "base/timeline.hpp"
#include "comm/communicator.hpp"
#include "core/exchange/lane_metrics.hpp"
#include "optim/codec.hpp"
#include "topology/topology.hpp"

namespace gossamer {

/// The references must outlive the factory.
struct LaneSetup {
  /// The stream whose work writes the blocks and reads the inboxes.
  Stream& stream;
  Communicator& communicator;
  /// The topology of LaneMembers::kTopology and kTree; may be null if no lane needs it.
  std::shared_ptr<const Topology> topology;
  /// The codec that encodes the blocks of lanes of LaneResult::kMix and kSum; null: the lanes send
  /// plain blocks. Lanes of kMix with a codec need an undirected topology. On a GPU the codec needs
  /// kernels (Codec::kernels()).
  const Codec* codec = nullptr;
  /// Ranks of one host read each other's memory; false: they send messages. Equal on all ranks.
  bool shares_memory = true;
  /// An exchange may fail while the step goes on without it. So the pass that mixes begins when all
  /// has arrived.
  bool waits_whole = false;
  /// Lanes add the time they wait and the bytes they send.
  LaneMetrics& metrics;
  SimdPath simd = best_simd_path();
  /// Lanes record waits and messages; null: nothing is recorded.
  std::shared_ptr<Timeline> timeline = {};
};

}  // namespace gossamer

#pragma once
// Lanes over a Communicator: a round is an exchange with a peer, in a group, with several
// neighbours, or in two levels. It sends straight from the block and receives into inboxes that the
// lane owns.

#include <map>
#include <memory>
#include <utility>

#include "core/lane.hpp"
#include "core/peers.hpp"
#include "core/pipeline_metrics.hpp"

namespace gossamer {

class PeerLanes : public LaneFactory {
 public:
  struct Setup {
    /// Whose work writes the blocks and reads the inboxes.
    Stream& stream;
    Communicator& communicator;
    /// For LaneRounds::kTopology; may be null otherwise.
    std::shared_ptr<const Topology> topology;
    /// Lanes add their waiting and their bytes.
    PipelineMetrics& metrics;
    SimdPath simd = best_simd_path();
  };
  /// What `setup` refers to outlives the factory.
  explicit PeerLanes(Setup setup) : setup_(std::move(setup)) {}

  std::unique_ptr<Lane> make_lane(const LaneSpec& spec) override;
  [[nodiscard]] int num_ranks() const override { return setup_.communicator.size(); }

 private:
  /// One for each kind of rounds, made with the first lane that needs it.
  Peers& peers_of(LaneRounds rounds);

  Setup setup_;
  std::unique_ptr<const Topology> complete_;
  std::map<LaneRounds, std::unique_ptr<Peers>> peers_;
};

}  // namespace gossamer

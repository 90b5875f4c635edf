// Decentralised training with overlap (Lian et al., "Can Decentralized Algorithms Outperform
// Centralized Algorithms?", NeurIPS 2017; Wang et al., "From Promise to Practice", ICLR 2025): x' =
// W x - u. The exchange of a bucket starts after the bucket's update and ends before its next
// update. So it has the rest of the backward pass and the whole next forward pass.
//
// share_moments and share_momentum: all ranks take means of the optimizer's moments every few steps
// (shared_moments.hpp).

#include "core/algorithms/algorithm_options.hpp"
#include "core/algorithms/bucket_lanes.hpp"
#include "core/algorithms/shared_moments.hpp"

namespace gossamer {
namespace {

class Gossip : public Algorithm {
 public:
  Gossip(const AlgorithmSetup& setup, const MomentPeriods& periods)
      : setup_(setup), lanes_(setup), moments_(setup, periods, LaneMembers::kAll) {}

  Intake before_update(Bucket& bucket) override {
    moments_.finish(bucket);
    return lanes_[bucket].receive();
  }
  void after_update(Bucket& bucket) override {
    const std::int64_t k = setup_.progress.round();
    lanes_[bucket].start(k, bucket.parameters());
    moments_.start(bucket, k + 1, k);
  }

 private:
  AlgorithmSetup setup_;
  BucketLanes lanes_;
  SharedMoments moments_;
};

}  // namespace

AlgorithmFactory read_gossip(const Options& options) {
  const MomentPeriods periods{.second = options.read(gossip::kShareMoments),
                              .first = options.read(gossip::kShareMomentum)};
  const auto make = [periods](const AlgorithmSetup& setup) {
    return std::make_unique<Gossip>(setup, periods);
  };
  if (!periods.any()) return make;
  return {make,
          [periods](const AlgorithmSetting& setting) { return why_not_shared(periods, setting); },
          std::nullopt, periods.together()};
}

}  // namespace gossamer

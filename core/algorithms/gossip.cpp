// Decentralised training with overlap (Lian et al., "Can Decentralized Algorithms Outperform
// Centralized Algorithms?", NeurIPS 2017; Wang et al., "From Promise to Practice", ICLR 2025): x' =
// W x - u. The exchange of a bucket starts after the bucket's update and ends before its next
// update. So it has the rest of the backward pass and the whole next forward pass.
//
// overlap: false is x' = W (x - u), "adapt then combine" (Chen and Sayed, IEEE Trans. Signal
// Processing 2012): the exchange ends before the next step. Then the ranks compute their gradients
// at models that lie nearer together, and a step takes the time of the exchange in addition.
//
// share_moments and share_momentum: all ranks take means of the optimizer's moments every few steps
// (shared_moments.hpp).

#include <string>

#include "core/algorithms/algorithm_options.hpp"
#include "core/algorithms/bucket_lanes.hpp"
#include "core/algorithms/shared_moments.hpp"

namespace gossamer {
namespace {

class Gossip : public Algorithm {
 public:
  Gossip(const AlgorithmSetup& setup, bool overlaps, const MomentPeriods& periods)
      : setup_(setup),
        overlaps_(overlaps),
        lanes_(setup, {.is_rare = !overlaps}),
        moments_(setup, periods, LaneMembers::kAll) {}

  [[nodiscard]] bool mixes_at_end() const override { return !overlaps_; }

  Intake before_update(Bucket& bucket) override {
    moments_.finish(bucket);
    if (overlaps_) return lanes_[bucket].receive();
    lanes_[bucket].wait();
    return lanes_[bucket].take();
  }
  void after_update(Bucket& bucket) override {
    const std::int64_t k = setup_.progress.round();
    lanes_[bucket].start(k, bucket.parameters());
    moments_.start(bucket, k + 1, k);
  }

 private:
  AlgorithmSetup setup_;
  bool overlaps_;
  BucketLanes lanes_;
  SharedMoments moments_;
};

/// Why an update cannot come before the mixing of a step; empty: it can.
std::string why_not_at_end(const AlgorithmSetting& setting) {
  if (setting.topology != nullptr && setting.topology->directed()) {
    return "algorithm.overlap: false needs a topology whose messages go in both directions, "
           "because in others the mixing weighs the update; take base-k or ring, or leave overlap "
           "out";
  }
  if (setting.optimizer != nullptr && setting.optimizer->sees_mixing()) {
    return "the optimizer looks at what mixing changes in the pass of the update, and with "
           "algorithm.overlap: false mixing comes after it; take another optimizer, or leave "
           "overlap out";
  }
  return "";
}

}  // namespace

AlgorithmFactory read_gossip(const Options& options) {
  const MomentPeriods periods{.second = options.read(gossip::kShareMoments),
                              .first = options.read(gossip::kShareMomentum)};
  const bool overlaps = options.read(gossip::kOverlap);
  return {[=](const AlgorithmSetup& setup) {
            return std::make_unique<Gossip>(setup, overlaps, periods);
          },
          [=](const AlgorithmSetting& setting) {
            const std::string reason = overlaps ? "" : why_not_at_end(setting);
            return reason.empty() ? why_not_shared(periods, setting) : reason;
          },
          std::nullopt, periods.together(), /*takes_recipe=*/true};
}

}  // namespace gossamer

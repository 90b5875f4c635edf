// Decentralised training with overlap (Lian et al., "Can Decentralized Algorithms Outperform
// Centralized Algorithms?", NeurIPS 2017; Wang et al., "From Promise to Practice", ICLR 2025): x' =
// W x - u. The exchange of a bucket starts after the bucket's update and ends before its next
// update. So it has the rest of the backward pass and the whole next forward pass.
//
// share_moments: H. Adam divides by the root of a second moment v. Every rank has its own v, so the
// mean of the ranks' updates is not the update of the mean gradient; on uneven data the difference
// is large (docs/accuracy.md). Therefore all ranks take the mean of their v after every H steps,
// and after 1, 2, 4, 8, ... < H steps, where v is young and changes fast. The mean travels beside
// the exchange of the parameters. Nothing writes v between two updates, so v itself is sent.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/algorithms/algorithm_options.hpp"
#include "core/bucket_lanes.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

constexpr std::string_view kMoments = "v";

/// The mean of all ranks' second moments, every few steps.
class SharedMoments {
 public:
  /// Collective. The optimizer must have second moments.
  SharedMoments(const AlgorithmSetup& setup, std::int64_t every)
      : setup_(setup),
        every_(every),
        lanes_(setup, {.members = LaneMembers::kAll,
                       .result = LaneResult::kMean,
                       .content = "second moments"}) {
    for (const Bucket& bucket : setup.buckets) moments_.add(bucket.state(kMoments));
  }

  void finish(const Bucket& bucket) {
    lanes_[bucket].wait();
    const Intake mean = lanes_[bucket].take();
    enqueue_mix(setup_.stream, moments_[bucket].block(), mean.keep,
                {mean.inboxes.begin(), mean.inboxes.end()}, {}, setup_.simd);
  }
  void start(const Bucket& bucket) {
    const std::int64_t k = setup_.progress.round();
    const bool is_young = k + 1 < every_ && std::has_single_bit(static_cast<std::uint64_t>(k + 1));
    if (is_young || (k + 1) % every_ == 0) lanes_[bucket].start(k, moments_[bucket]);
  }

 private:
  AlgorithmSetup setup_;
  std::int64_t every_;
  BucketLanes lanes_;
  PerBucket<Buffer> moments_;
};

class Gossip : public Algorithm {
 public:
  /// `share_moments`: 0: never.
  Gossip(const AlgorithmSetup& setup, std::int64_t share_moments) : setup_(setup), lanes_(setup) {
    if (share_moments > 0) moments_.emplace(setup, share_moments);
  }

  Intake before_update(Bucket& bucket) override {
    if (moments_) moments_->finish(bucket);
    return lanes_[bucket].receive();
  }
  void after_update(Bucket& bucket) override {
    lanes_[bucket].start(setup_.progress.round(), bucket.parameters());
    if (moments_) moments_->start(bucket);
  }

 private:
  AlgorithmSetup setup_;
  BucketLanes lanes_;
  std::optional<SharedMoments> moments_;
};

}  // namespace

AlgorithmFactory read_gossip(const Options& options) {
  const std::int64_t share_moments = options.read(gossip::kShareMoments);
  const auto make = [share_moments](const AlgorithmSetup& setup) {
    return std::make_unique<Gossip>(setup, share_moments);
  };
  if (share_moments == 0) return make;
  return {make, [](const AlgorithmSetting& setting) -> std::string {
            if (setting.optimizer == nullptr) return "";
            const auto states = setting.optimizer->state_names();
            if (std::ranges::find(states, kMoments) != states.end()) return "";
            return "the optimizer keeps no second moments, which algorithm.share_moments needs; "
                   "take an optimizer of the Adam family, or leave share_moments out";
          }};
}

}  // namespace gossamer

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
//
// share_momentum: H. The same for the first moments, or the momentum of descent, after every H
// steps (DES-LOC, arXiv 2505.22549, has a period for each moment). A common m over a v that has not
// seen the same gradients is a huge step, so the ranks share v whenever they share m: H is a
// multiple of that of share_moments. Where parameters have several optimizers, each shares the
// states that it has; one with v shares m only if it shares v.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.hpp"
#include "core/algorithms/algorithm_options.hpp"
#include "core/bucket_lanes.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

/// A state of the optimizer.
struct Moments {
  std::string_view state;
  std::string_view content;
  /// True: the ranks also average after 1, 2, 4, 8, ... steps.
  bool starts_early = false;
};
constexpr Moments kSecond{"v", "second moments", true};
constexpr Moments kFirst{"m", "first moments"};
constexpr Moments kOfDescent{"momentum", "momentum"};

bool has(const Optimizer& optimizer, const Moments& moments) {
  const auto states = optimizer.state_names();
  return std::ranges::find(states, moments.state) != states.end();
}

/// The mean of a state over all ranks, every few steps.
class SharedMoments {
 public:
  /// Collective. Only the buckets that `takes` names share the state.
  template <class Takes>
  SharedMoments(const AlgorithmSetup& setup, const Moments& moments, std::int64_t every,
                const Takes& takes)
      : setup_(setup),
        starts_early_(moments.starts_early),
        every_(every),
        lanes_(setup, {.members = LaneMembers::kAll,
                       .result = LaneResult::kMean,
                       .content = moments.content}) {
    for (const Bucket& bucket : setup.buckets) {
      moments_.add(takes(bucket) ? bucket.state(moments.state) : Buffer());
    }
  }

  void finish(const Bucket& bucket) {
    if (is_left_alone(bucket)) return;
    lanes_[bucket].wait();
    const Intake mean = lanes_[bucket].take();
    enqueue_mix(setup_.stream, moments_[bucket].block(), mean.keep,
                {mean.inboxes.begin(), mean.inboxes.end()}, {}, setup_.simd);
  }
  void start(const Bucket& bucket) {
    if (is_left_alone(bucket)) return;
    const std::int64_t k = setup_.progress.round();
    const bool is_early =
        starts_early_ && k + 1 < every_ && std::has_single_bit(static_cast<std::uint64_t>(k + 1));
    if (is_early || (k + 1) % every_ == 0) lanes_[bucket].start(k, moments_[bucket]);
  }

 private:
  [[nodiscard]] bool is_left_alone(const Bucket& bucket) {
    return moments_[bucket].block().data == nullptr;
  }

  AlgorithmSetup setup_;
  bool starts_early_;
  std::int64_t every_;
  BucketLanes lanes_;
  PerBucket<Buffer> moments_;
};

struct GossipOptions {
  /// In steps; 0: never.
  std::int64_t share_moments = 0;
  std::int64_t share_momentum = 0;
};

class Gossip : public Algorithm {
 public:
  Gossip(const AlgorithmSetup& setup, const GossipOptions& options) : setup_(setup), lanes_(setup) {
    if (options.share_moments > 0) share(kSecond, options.share_moments);
    if (options.share_momentum == 0) return;
    share(kFirst, options.share_momentum, [&options](const Bucket& bucket) {
      // A common m over a v of the rank's own would be a huge step.
      return options.share_moments > 0 || !has(bucket.optimizer(), kSecond);
    });
    share(kOfDescent, options.share_momentum);
  }

  Intake before_update(Bucket& bucket) override {
    for (SharedMoments& moments : moments_) moments.finish(bucket);
    return lanes_[bucket].receive();
  }
  void after_update(Bucket& bucket) override {
    lanes_[bucket].start(setup_.progress.round(), bucket.parameters());
    for (SharedMoments& moments : moments_) moments.start(bucket);
  }

 private:
  template <class MayTake>
  void share(const Moments& moments, std::int64_t every, const MayTake& may_take) {
    const auto takes = [&](const Bucket& bucket) {
      return has(bucket.optimizer(), moments) && may_take(bucket);
    };
    if (std::ranges::any_of(setup_.buckets, takes)) {
      moments_.emplace_back(setup_, moments, every, takes);
    }
  }
  void share(const Moments& moments, std::int64_t every) {
    share(moments, every, [](const Bucket&) { return true; });
  }

  AlgorithmSetup setup_;
  BucketLanes lanes_;
  std::vector<SharedMoments> moments_;
};

std::string why_not_momentum(const Optimizer& optimizer, const GossipOptions& options) {
  if (options.share_momentum == 0) return "";
  if (!has(optimizer, kFirst) && !has(optimizer, kOfDescent)) {
    return "the optimizer keeps no momentum, which algorithm.share_momentum needs; take one that "
           "does, or leave share_momentum out";
  }
  if (!has(optimizer, kSecond)) return "";
  if (options.share_moments > 0 && options.share_momentum % options.share_moments == 0) return "";
  return concat("algorithm.share_momentum is ", options.share_momentum,
                " and algorithm.share_moments is ", options.share_moments,
                ", so the ranks would divide a common momentum by second moments of their own, and "
                "diverge; take a multiple of share_moments");
}

}  // namespace

AlgorithmFactory read_gossip(const Options& options) {
  const GossipOptions read{.share_moments = options.read(gossip::kShareMoments),
                           .share_momentum = options.read(gossip::kShareMomentum)};
  const auto make = [read](const AlgorithmSetup& setup) {
    return std::make_unique<Gossip>(setup, read);
  };
  if (read.share_moments == 0 && read.share_momentum == 0) return make;
  return {make, [read](const AlgorithmSetting& setting) -> std::string {
            if (setting.optimizer == nullptr) return "";
            const auto has_second = [](const auto& other) { return has(*other, kSecond); };
            if (read.share_moments > 0 && !has(*setting.optimizer, kSecond) &&
                std::ranges::none_of(setting.group_optimizers, has_second)) {
              return "the optimizer keeps no second moments, which algorithm.share_moments needs; "
                     "take an optimizer of the Adam family, or leave share_moments out";
            }
            return why_not_momentum(*setting.optimizer, read);
          }};
}

}  // namespace gossamer

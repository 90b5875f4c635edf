#include "core/algorithms/shared_moments.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/text.hpp"
#include "optim/block_update.hpp"

namespace gossamer {

/// A state of optimizers.
struct SharedMoments::Kind {
  std::string_view state;
  std::string_view content;
  /// True: the ranks also average after 1, 2, 4, 8, ... rounds.
  bool starts_early = false;
  /// False: an optimizer with second moments keeps the state to itself.
  bool shares_beside_second = true;
};

namespace {

constexpr std::string_view kSecond = "v";
constexpr std::string_view kFirst = "m";
constexpr std::string_view kMomentum = "momentum";

bool has(const Optimizer& optimizer, std::string_view state) {
  const auto states = optimizer.state_names();
  return std::ranges::find(states, state) != states.end();
}

bool has_momentum(const Optimizer& optimizer) {
  return has(optimizer, kFirst) || has(optimizer, kMomentum);
}

/// Without a codec, members of a group send sums. kApart keeps blocks plain under a codec, too.
LaneSpec spec_of(const AlgorithmSetup& setup, LaneMembers members, std::string_view content) {
  const LaneResult in_topology = setup.codec == nullptr ? LaneResult::kMix : LaneResult::kApart;
  return {.members = members,
          .result = members == LaneMembers::kAll ? LaneResult::kMean : in_topology,
          .content = content,
          .is_rare = true};
}

}  // namespace

std::string why_not_shared(const MomentPeriods& periods, const AlgorithmSetting& setting) {
  if (setting.optimizer == nullptr) return "";
  const auto some = [&setting](const auto& is_so) {
    return is_so(*setting.optimizer) ||
           std::ranges::any_of(setting.group_optimizers,
                               [&](const auto& of_group) { return is_so(*of_group); });
  };
  if (periods.second > 0 && !some([](const Optimizer& each) { return has(each, kSecond); })) {
    return "the optimizer keeps no second moments, which algorithm.share_moments needs; "
           "take an optimizer of the Adam family, or leave share_moments out";
  }
  if (periods.first == 0) return "";
  if (!some(has_momentum)) {
    return "the optimizer keeps no momentum, which algorithm.share_momentum needs; take one that "
           "does, or leave share_momentum out";
  }
  const bool some_have_both =
      some([](const Optimizer& each) { return has_momentum(each) && has(each, kSecond); });
  const bool fits =
      periods.second > 0
          ? periods.first % periods.second == 0 || !some_have_both
          : some([](const Optimizer& each) { return has_momentum(each) && !has(each, kSecond); });
  if (fits) return "";
  return concat("algorithm.share_momentum is ", periods.first, " and algorithm.share_moments is ",
                periods.second,
                ", so the ranks would divide a common momentum by second moments of their own, and "
                "diverge; take a multiple of share_moments");
}

SharedMoments::SharedMoments(const AlgorithmSetup& setup, const MomentPeriods& periods,
                             LaneMembers members)
    : setup_(setup) {
  share({.state = kSecond, .content = "second moments", .starts_early = true}, periods.second,
        members);
  share({.state = kFirst, .content = "first moments", .shares_beside_second = periods.second > 0},
        periods.first, members);
  share({.state = kMomentum, .content = "momentum"}, periods.first, members);
}

void SharedMoments::share(const Kind& kind, std::int64_t every, LaneMembers members) {
  const auto shares = [&](const Bucket& bucket) {
    return has(bucket.optimizer(), kind.state) &&
           (kind.shares_beside_second || !has(bucket.optimizer(), kSecond));
  };
  if (every == 0 || std::ranges::none_of(setup_.buckets, shares)) return;
  Means means{.starts_early = kind.starts_early,
              .every = every,
              .lanes = BucketLanes(setup_, spec_of(setup_, members, kind.content)),
              .states = {}};
  for (const Bucket& bucket : setup_.buckets) {
    means.states.add(shares(bucket) ? bucket.state(kind.state) : Buffer());
  }
  means_.push_back(std::move(means));
}

void SharedMoments::finish(const Bucket& bucket) {
  for (Means& means : means_) {
    const Block state = means.states[bucket].block();
    if (state.data == nullptr) continue;
    means.lanes[bucket].wait();
    const Intake mean = means.lanes[bucket].take();
    enqueue_mix(setup_.stream, state, mean.keep, mean.inboxes, mean.exchange, setup_.simd);
  }
}

void SharedMoments::start(const Bucket& bucket, std::int64_t count, std::int64_t lane_round) {
  for (Means& means : means_) {
    if (means.states[bucket].block().data == nullptr) continue;
    const bool is_early = means.starts_early && count < means.every &&
                          std::has_single_bit(static_cast<std::uint64_t>(count));
    if (is_early || count % means.every == 0) {
      means.lanes[bucket].start(lane_round, means.states[bucket]);
    }
  }
}

}  // namespace gossamer

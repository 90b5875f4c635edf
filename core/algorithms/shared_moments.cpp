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
};

namespace {

constexpr std::string_view kSecond = "v";
constexpr std::string_view kFirst = "m";
constexpr std::string_view kOfDescent = "momentum";

bool has(const Optimizer& optimizer, std::string_view state) {
  const auto states = optimizer.state_names();
  return std::ranges::find(states, state) != states.end();
}

/// In a topology blocks travel plain, because a second moment that takes in an encoded difference
/// may become negative.
LaneSpec spec_of(LaneMembers members, std::string_view content) {
  const LaneResult result = members == LaneMembers::kAll ? LaneResult::kMean : LaneResult::kApart;
  return {.members = members, .result = result, .content = content, .is_rare = true};
}

std::string why_not_first(const MomentPeriods& periods, const Optimizer& optimizer) {
  if (periods.first == 0) return "";
  if (!has(optimizer, kFirst) && !has(optimizer, kOfDescent)) {
    return "the optimizer keeps no momentum, which algorithm.share_momentum needs; take one that "
           "does, or leave share_momentum out";
  }
  if (!has(optimizer, kSecond)) return "";
  if (periods.second > 0 && periods.first % periods.second == 0) return "";
  return concat("algorithm.share_momentum is ", periods.first, " and algorithm.share_moments is ",
                periods.second,
                ", so the ranks would divide a common momentum by second moments of their own, and "
                "diverge; take a multiple of share_moments");
}

}  // namespace

std::string why_not_shared(const MomentPeriods& periods, const AlgorithmSetting& setting) {
  if (setting.optimizer == nullptr) return "";
  const auto has_second = [](const auto& other) { return has(*other, kSecond); };
  if (periods.second > 0 && !has(*setting.optimizer, kSecond) &&
      std::ranges::none_of(setting.group_optimizers, has_second)) {
    return "the optimizer keeps no second moments, which algorithm.share_moments needs; "
           "take an optimizer of the Adam family, or leave share_moments out";
  }
  return why_not_first(periods, *setting.optimizer);
}

SharedMoments::SharedMoments(const AlgorithmSetup& setup, const MomentPeriods& periods,
                             LaneMembers members)
    : setup_(setup) {
  const bool shares_second = periods.second > 0;
  share({kSecond, "second moments", true}, periods.second, members, true);
  share({kFirst, "first moments"}, periods.first, members, shares_second);
  share({kOfDescent, "momentum"}, periods.first, members, true);
}

/// `with_second`: buckets whose optimizer has second moments share the state, too.
void SharedMoments::share(const Kind& kind, std::int64_t every, LaneMembers members,
                          bool with_second) {
  const auto shares = [&](const Bucket& bucket) {
    return has(bucket.optimizer(), kind.state) &&
           (with_second || !has(bucket.optimizer(), kSecond));
  };
  if (every == 0 || std::ranges::none_of(setup_.buckets, shares)) return;
  Means means{.starts_early = kind.starts_early,
              .every = every,
              .lanes = BucketLanes(setup_, spec_of(members, kind.content)),
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
    enqueue_mix(setup_.stream, state, mean.keep, {mean.inboxes.begin(), mean.inboxes.end()}, {},
                setup_.simd);
  }
}

void SharedMoments::start(const Bucket& bucket, std::int64_t round) {
  const std::int64_t count = round + 1;
  for (Means& means : means_) {
    if (means.states[bucket].block().data == nullptr) continue;
    const bool is_early = means.starts_early && count < means.every &&
                          std::has_single_bit(static_cast<std::uint64_t>(count));
    if (is_early || count % means.every == 0) {
      means.lanes[bucket].start(round, means.states[bucket]);
    }
  }
}

}  // namespace gossamer

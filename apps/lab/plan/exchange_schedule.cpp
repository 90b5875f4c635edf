#include "apps/lab/plan/exchange_schedule.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "base/error.hpp"
#include "base/host_stream.hpp"
#include "base/text.hpp"
#include "core/exchange/coded_sum.hpp"
#include "core/step/step.hpp"
#include "optim/registry.hpp"
#include "topology/rank_round.hpp"

namespace gossamer::apps {
namespace {

// Periods that run, and steps at least: an algorithm of a user's own may state a period that is too
// short.
constexpr std::int64_t kNumPeriods = 4;
constexpr std::int64_t kLeastSteps = 64;
// Steps before the recorded ones: an algorithm may begin by sending less.
constexpr std::int64_t kNumBefore = 16;
// The first recorded step. Every warm-up is over by then.
constexpr std::int64_t kFirstStep = std::int64_t{1} << 40;
// Elements of all buckets together: of those that make steps, and of those that say how large the
// messages are.
constexpr std::int64_t kStepNumel = std::int64_t{1} << 8;
constexpr std::int64_t kSizeNumel = std::int64_t{1} << 22;

/// A round that a lane has started.
struct StartedRound {
  /// Lanes count from 0 in the order in which the algorithm makes them.
  std::size_t lane = 0;
  std::int64_t round = 0;
  /// As in PlannedExchange; negative: no rank has waited for it.
  std::int64_t late = -1;
};

/// The rounds that one rank starts in a step, for each bucket.
struct RecordedStep {
  std::vector<std::vector<StartedRound>> buckets;
  bool waits_in_step = false;
};

/// What the lanes of one rank have been asked to send.
struct Recording {
  /// What each lane sends in a round.
  std::vector<PlannedExchange> exchanges = {};
  std::vector<RecordedStep> steps = {};
};

/// Makes lanes that write down what they are asked to send. Nothing ever arrives, except that a sum
/// is one of zeros.
class RecordingLanes : public LaneFactory {
 public:
  RecordingLanes(const ExchangeSchedule::Setup& setup, Recording& recording,
                 LaneRanks ranks = LaneRanks::kAll)
      : setup_(setup), recording_(recording), ranks_(ranks) {}

  NodeLanes split_by_node() override {
    inside_ = std::make_unique<RecordingLanes>(setup_, recording_, LaneRanks::kInNode);
    between_ = std::make_unique<RecordingLanes>(setup_, recording_, LaneRanks::kBetweenNodes);
    return {.inside = *inside_, .between = *between_};
  }
  [[nodiscard]] int node_size() const override { return setup_.node_size; }
  AsyncExchange& make_async_exchange(AsyncExchange::Config /*config*/) override {
    throw ConfigError(
        "a plan follows steps that all ranks make together, and an asynchronous algorithm has "
        "none; take gossip");
  }
  [[nodiscard]] int num_ranks() const override {
    if (ranks_ == LaneRanks::kAll) return setup_.world_size;
    return ranks_ == LaneRanks::kInNode ? setup_.node_size : setup_.world_size / setup_.node_size;
  }
  // Blocks for several peers are alike.
  [[nodiscard]] std::int64_t num_tree_peers() const override { return 1; }

 protected:
  std::unique_ptr<Lane> make(const LaneSpec& spec) override {
    recording_.exchanges.push_back(exchange_of(spec));
    return std::make_unique<RecordedLane>(recording_, spec);
  }

 private:
  class RecordedLane : public Lane {
   public:
    RecordedLane(Recording& recording, const LaneSpec& spec)
        : recording_(recording), spec_(spec), index_(recording.exchanges.size() - 1) {
      if (spec.result == LaneResult::kSum) sum_ = Buffer(spec.numel, spec.dtype);
    }
    void start(std::int64_t k, const Buffer& /*send*/) override {
      const auto bucket = static_cast<std::size_t>(spec_.bucket);
      auto& started = recording_.steps.back().buckets[bucket];
      place_ = started.size();
      started.push_back({.lane = index_, .round = k});
      started_in_ = recording_.steps.size();
      is_awaited_ = false;
    }
    void wait() override {
      if (started_in_ == 0 || std::exchange(is_awaited_, true)) return;
      const std::size_t late = recording_.steps.size() - started_in_;
      RecordedStep& step = recording_.steps[started_in_ - 1];
      step.buckets[static_cast<std::size_t>(spec_.bucket)][place_].late =
          static_cast<std::int64_t>(late);
      if (late == 0) step.waits_in_step = true;
    }
    Intake take() override {
      if (spec_.result != LaneResult::kSum || started_in_ == 0) return {};
      return {.keep = 0.0, .inboxes = {{sum_.block(), 1.0}}};
    }
    void forget() override {}

   private:
    Recording& recording_;
    LaneSpec spec_;
    std::size_t index_;
    /// The number of the step that has started the last round; 0: none has.
    std::size_t started_in_ = 0;
    /// The place of the round in that step.
    std::size_t place_ = 0;
    bool is_awaited_ = false;
    Buffer sum_;
  };

  [[nodiscard]] PlannedExchange exchange_of(const LaneSpec& spec) const {
    const auto bucket = static_cast<std::size_t>(spec.bucket);
    const double whole = 4.0 * static_cast<double>(setup_.bucket_numel[bucket]);
    const double plain = static_cast<double>(spec.numel * size_of(spec.dtype)) / whole;
    PlannedExchange exchange{.ranks = ranks_,
                             .members = spec.members,
                             .result = spec.result,
                             .message_share = plain,
                             .group_share = plain};
    // A sum sends every part twice: to the rank that adds it up, and the sum to all.
    if (spec.result == LaneResult::kGather || spec.result == LaneResult::kShardSum) {
      exchange.message_share = exchange.group_share /= 2.0;
    }
    if (setup_.codec == nullptr) return exchange;
    const MixingCodec* const mixing = setup_.codec->mixing();
    if (spec.result == LaneResult::kMix && mixing != nullptr) {
      exchange.message_share = static_cast<double>(mixing->encoded_bytes(spec.numel)) / whole;
    } else if (spec.result == LaneResult::kSum && spec.num_coded > 0 && setup_.world_size > 1) {
      const CodedSum coded(*setup_.codec, spec, setup_.world_size);
      const auto num_ranks = static_cast<std::size_t>(setup_.world_size);
      exchange.group_share *=
          coded.bytes_sent() / exchange_bytes(spec.numel * size_of(spec.dtype), num_ranks);
      exchange.message_share = coded.bytes_sent() / (whole * static_cast<double>(num_ranks - 1));
      exchange.is_coded_sum = true;
    }
    return exchange;
  }

  const ExchangeSchedule::Setup& setup_;
  Recording& recording_;
  LaneRanks ranks_;
  std::unique_ptr<RecordingLanes> inside_;
  std::unique_ptr<RecordingLanes> between_;
};

/// One rank that trains with gradients of zero.
class RecordedRank {
 public:
  explicit RecordedRank(const ExchangeSchedule::Setup& setup)
      : lanes_(setup, recording_), schedule_(make_schedule("constant", {.lr = 0.1})) {
    const auto largest = *std::ranges::max_element(setup.bucket_numel);
    gradient_ = Buffer(largest, DType::kFloat32);
    squares_ = Buffer(std::ssize(setup.bucket_numel), DType::kFloat64);
    buckets_.reserve(setup.bucket_numel.size());
    for (const std::int64_t numel : setup.bucket_numel) {
      const std::vector<ParameterInfo> parameters = {{.name = "x", .shape = {1, numel}}};
      const BucketSpec spec{.entries = {{.parameter = 0, .offset = 0}}, .numel = numel};
      const std::int64_t index = std::ssize(buckets_);
      buckets_.emplace_back(index, spec, parameters,
                            Bucket::Memory{.model = {.parameters = Buffer(numel, DType::kFloat32)},
                                           .squares = part_of(squares_.block(), index, 1)},
                            setup.optimizer, stream_);
    }
    algorithm_ = setup.algorithm.make({.buckets = buckets_,
                                       .lanes = lanes_,
                                       .progress = progress_,
                                       .schedule = *schedule_,
                                       .stream = stream_,
                                       .codec = setup.codec});
  }

  void step() {
    recording_.steps.emplace_back().buckets.resize(buckets_.size());
    for (Bucket& bucket : buckets_) {
      bucket.offer(0, part_of(gradient_.block(), 0, bucket.spec().numel));
    }
    PhasedStep step(*algorithm_, buckets_);
    step.send_gradients();
    step.update(schedule_->lr(progress_.num_updates()));
    step.send_parameters();
    ++progress_.num_steps;
    step.mix(stream_);
  }

  [[nodiscard]] const Recording& recording() const { return recording_; }

 private:
  InlineStream stream_;
  Recording recording_;
  RecordingLanes lanes_;
  Progress progress_{.num_steps = kFirstStep};
  std::unique_ptr<Schedule> schedule_;
  Buffer gradient_;
  Buffer squares_;
  std::vector<Bucket> buckets_;
  std::unique_ptr<Algorithm> algorithm_;
};

/// A number for each step; equal where the same lanes start a round.
std::vector<int> kinds_of(std::span<const RecordedStep> steps) {
  std::map<std::vector<std::size_t>, int> known;
  std::vector<int> kinds;
  for (const RecordedStep& step : steps) {
    std::vector<std::size_t> lanes;
    for (const auto& bucket : step.buckets) {
      for (const StartedRound& started : bucket) lanes.push_back(started.lane);
    }
    kinds.push_back(
        known.try_emplace(std::move(lanes), static_cast<int>(known.size())).first->second);
  }
  return kinds;
}

bool sends_nothing(const RecordedStep& step) {
  return std::ranges::all_of(step.buckets, [](const auto& bucket) { return bucket.empty(); });
}

bool repeats_after(std::int64_t period, const std::vector<int>& kinds) {
  const auto shift = static_cast<std::ptrdiff_t>(period);
  return std::equal(kinds.begin() + shift, kinds.end(), kinds.begin());
}

/// The setup with buckets of at most `most` elements together.
ExchangeSchedule::Setup with_small_buckets(ExchangeSchedule::Setup setup, std::int64_t most) {
  const std::int64_t share = most / std::ssize(setup.bucket_numel);
  for (std::int64_t& numel : setup.bucket_numel) {
    numel = std::clamp(numel, std::int64_t{1}, std::max(std::int64_t{1}, share));
  }
  return setup;
}

}  // namespace

ExchangeSchedule::ExchangeSchedule(const Setup& setup) {
  const Setup large = with_small_buckets(setup, kSizeNumel);
  const std::vector<PlannedExchange> exchanges = RecordedRank(large).recording().exchanges;
  const Setup small = with_small_buckets(setup, kStepNumel);
  RecordedRank rank(small);
  const std::int64_t length = setup.algorithm.period();
  if (length > kLongestPeriod) {
    throw ConfigError(concat(setup.algorithm.text(), ": what it sends repeats after ", length,
                             " steps, and a plan follows up to ", kLongestPeriod));
  }
  const std::int64_t num_steps = kNumBefore + std::max(kNumPeriods * length, kLeastSteps);
  for (std::int64_t step = 0; step < num_steps; ++step) rank.step();
  const auto steps = std::span(rank.recording().steps).subspan(kNumBefore);
  const bool should_send =
      setup.algorithm.entry().steps != RankSteps::kAlone && setup.world_size > 1;
  if (!repeats_after(length, kinds_of(steps)) ||
      (should_send && std::ranges::all_of(steps, sends_nothing))) {
    throw ConfigError(concat(setup.algorithm.text(), ": what it sends does not repeat after ",
                             length, " steps, the period that its factory states"));
  }
  // A period that begins where one of a run does, with another one before it. What it starts is
  // waited for in the one after it.
  std::int64_t begin = kFirstStep + kNumBefore + std::ssize(steps) - 3 * length;
  begin += (length - begin % length) % length;
  for (std::int64_t step = begin; step < begin + length; ++step) {
    const auto k = static_cast<std::size_t>(step - kFirstStep - kNumBefore);
    waits_in_step_ = waits_in_step_ || steps[k].waits_in_step;
    auto& buckets = steps_.emplace_back();
    for (std::size_t b = 0; b < steps[k].buckets.size(); ++b) {
      auto& repeated = buckets.emplace_back();
      for (std::size_t i = 0; i < steps[k].buckets[b].size(); ++i) {
        const StartedRound& started = steps[k].buckets[b][i];
        if (started.late < 0) {
          throw std::logic_error(concat(setup.algorithm.text(), " does not wait for an exchange"));
        }
        const std::int64_t grows =
            started.round - steps[k - static_cast<std::size_t>(length)].buckets[b][i].round;
        repeated.push_back({exchanges[started.lane], grows});
        repeated.back().exchange.round = started.round - step / length * grows;
        repeated.back().exchange.late = started.late;
      }
    }
  }
}

std::vector<PlannedExchange> ExchangeSchedule::at(std::int64_t step, std::int64_t bucket) const {
  std::vector<PlannedExchange> exchanges;
  const auto& of_step = steps_[static_cast<std::size_t>(step % period())];
  for (const Repeated& repeated : of_step[static_cast<std::size_t>(bucket)]) {
    exchanges.push_back(repeated.exchange);
    std::int64_t& round = exchanges.back().round;
    round = std::max(std::int64_t{0}, round + step / period() * repeated.rounds_per_period);
  }
  return exchanges;
}

bool ExchangeSchedule::only_mixes() const {
  const auto mixes = [](const std::vector<Repeated>& all) {
    return all.size() == 1 && all.front().exchange.result == LaneResult::kMix;
  };
  return period() == 1 && std::ranges::all_of(steps_.front(), mixes);
}

}  // namespace gossamer::apps

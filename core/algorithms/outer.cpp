// Every rank trains alone, and every few steps the ranks average their models: all of them, or
// those that meet in a round of a topology. The average does not become the model at once. Instead
// it moves an anchor a, which is the rank's model after its last average, with a momentum m of its
// own. The moved anchor then becomes the model.
//
//   slowmo   m = momentum m + (a - mean x) / lr,   a = a - outer_lr lr m
//            (Wang, Tantia, Ballas and Rabbat, "SlowMo", ICLR 2020)
//   diloco   D = a - mean x,   m = momentum m + D,   a = a - outer_lr (D + momentum m)
//            (Douillard et al., "DiLoCo", 2023; Nesterov's momentum on D)
//   noloco   m = momentum m + outer_lr (mean x - a),   a = a + m
//            (NoLoCo, arXiv 2506.10911, where `mean x` is that of a pair. Its authors send a and
//            x - a; only their sum x enters.)
//   gasloc   y = a + outer_lr (x - a),   a = mean y + momentum (y - y of the average before)
//            (GASLoC, arXiv 2606.11081; the mean has the topology's weights)
//
// outer_averages.hpp says how ranks meet, also under a codec. lr is the learning rate of the step
// whose models are averaged. With momentum 0 and an outer learning rate of 1 all kinds are local
// SGD. The n-th average meets in round n of the topology.
//
// An average travels for `late` steps. With 1 it travels during the next forward and backward pass.
// With `overlap: false` the next step waits for it.
// With more, the rank sends a snapshot and trains on. When the average arrives, the rank keeps the
// part `blend` of its own model: x = blend x + (1 - blend) a (Douillard et al., "Streaming DiLoCo",
// 2025). With `streaming: true` the buckets take turns, which spreads the traffic of an average
// over a whole cycle (the same paper).
//
// share_moments and share_momentum: the ranks that average their models also take means of the
// optimizer's moments, with every k-th average (shared_moments.hpp).

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "core/algorithms/algorithm_options.hpp"
#include "core/algorithms/outer_averages.hpp"
#include "core/algorithms/outer_momentum.hpp"
#include "core/algorithms/shared_moments.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

/// The kinds in the order of the option's words.
enum class Kind : std::uint8_t { kSlowMo, kDiLoCo, kNoLoCo, kGasLoC };

struct OuterOptions {
  std::int64_t every = 8;
  Kind kind = Kind::kSlowMo;
  bool follows_topology = false;
  double lr = 1.0;
  double momentum = 0.5;
  bool streams = false;
  bool overlaps = true;
  std::int64_t late = 1;
  double blend = 0.0;
  double error_decay = 1.0;
  /// The periods of the moments, counted in averages.
  MomentPeriods moments = {};

  /// Whether the rule for recipes of all-reduce holds (core/step/recipe.hpp). It did harm with
  /// averages every 10 steps, and with momentum, which works like a larger learning rate.
  [[nodiscard]] bool is_plain_and_frequent() const {
    return every <= 2 && momentum == 0.0 && lr == 1.0;
  }
  /// Whether a rank sends something else than its parameters of this moment.
  [[nodiscard]] bool sends_copies() const { return late > 1 || kind == Kind::kGasLoC; }
};

class Outer : public Algorithm {
 public:
  Outer(const OuterOptions& options, const AlgorithmSetup& setup)
      : options_(options),
        setup_(setup),
        averages_(setup, {.follows_topology = options.follows_topology,
                          .every = options.every,
                          .error_decay = options.error_decay}),
        moments_(setup, options.moments,
                 options.follows_topology ? LaneMembers::kTopology : LaneMembers::kAll) {
    for (Bucket& bucket : setup.buckets) {
      Slot slot{.anchor = bucket.add_state("anchor"),
                .momentum = bucket.add_state("outer_momentum")};
      if (options.sends_copies()) slot.sent = bucket.add_state("outer_sent");
      slots_.add(std::move(slot));
    }
    forgotten_before_ = step();
    take_anchors();
  }

  [[nodiscard]] bool mixes_at_end() const override { return !options_.overlaps; }

  Intake before_update(Bucket& bucket) override {
    slots_[bucket].is_updated = true;
    moments_.finish(bucket);
    const auto began = step() - options_.late;
    if (!averages_after(began, bucket)) return {};
    averages_.wait(bucket);
    if (began >= forgotten_before_) {
      move(bucket);
    } else {
      averages_.drop(bucket, step());
    }
    return {};
  }

  void after_update(Bucket& bucket) override {
    Slot& slot = slots_[bucket];
    const bool is_repeated = !std::exchange(slot.is_updated, false);
    if (averages_after(step(), bucket)) {
      // After loading, what was sent is a part of the state.
      if (options_.sends_copies() && !is_repeated) take_copy(bucket);
      return start(step(), bucket);
    }
    if (!is_repeated) return;
    for (std::int64_t began = step() - 1; began > step() - options_.late; --began) {
      if (averages_after(began, bucket)) return start(began, bucket);
    }
  }

  /// This rank goes on taking part in averages under way, because other ranks may not have
  /// forgotten.
  void forget() override {
    forgotten_before_ = step();
    averages_.forget(step());
    take_anchors();
  }

  void visit(StateVisitor& visitor) override {
    averages_.visit(visitor);
    // An average that takes one step is forgotten at once, or not at all.
    const bool is_late = options_.late > 1;
    if (is_late) visitor.number("run/outer_forgotten_before", forgotten_before_);
    if (!options_.streams) return;
    constexpr const char* kBuckets = "run/outer_buckets";
    auto num_buckets = static_cast<std::int64_t>(setup_.buckets.size());
    // A run whose averages did not stream has not saved it.
    if (!visitor.loads() || visitor.holds(kBuckets)) visitor.number(kBuckets, num_buckets);
    if (num_buckets == std::ssize(setup_.buckets)) return;
    // Other buckets have other turns, and what was under way fits none of them.
    if (is_late) forgotten_before_ = step();
    averages_.distrust(step());
  }

 private:
  struct Slot {
    Buffer anchor;
    /// The momentum; of GASLoC, y of the average before.
    Buffer momentum;
    /// What the rank has sent, if these are not its parameters.
    Buffer sent = {};
    /// False: the state has been loaded since the last update.
    bool is_updated = false;
  };

  [[nodiscard]] std::int64_t step() const { return setup_.progress.round(); }

  /// The first step of a bucket's cycle is so much earlier.
  [[nodiscard]] std::int64_t turn_of(const Bucket& bucket) const {
    const auto num_buckets = static_cast<std::int64_t>(setup_.buckets.size());
    return options_.streams ? bucket.index() * options_.every / num_buckets : 0;
  }
  /// Whether an average of the bucket begins after the updates of a step.
  [[nodiscard]] bool averages_after(std::int64_t step, const Bucket& bucket) const {
    return step >= 0 && (step + 1 + turn_of(bucket)) % options_.every == 0;
  }
  void start(std::int64_t step, Bucket& bucket) {
    // Loading has forgotten everything before; what is started again is under way again.
    if (options_.late == 1) forgotten_before_ = std::min(forgotten_before_, step);
    const std::int64_t number = (step + 1 + turn_of(bucket)) / options_.every - 1;
    const Slot& slot = slots_[bucket];
    averages_.start(bucket, step, number, options_.sends_copies() ? slot.sent : bucket.parameters(),
                    slot.anchor.block());
    moments_.start(bucket, number + 1, options_.follows_topology ? number : step);
  }

  /// The models of this moment become the anchors.
  void take_anchors() {
    for (const Bucket& bucket : setup_.buckets) {
      const Slot& slot = slots_[bucket];
      const Block x = bucket.parameters().block();
      setup_.stream.copy(slot.anchor.block(), x);
      // It holds a model, too.
      if (options_.kind == Kind::kGasLoC) setup_.stream.copy(slot.momentum.block(), x);
    }
  }

  void take_copy(const Bucket& bucket) {
    const Slot& slot = slots_[bucket];
    const Block sent = slot.sent.block();
    setup_.stream.copy(sent, bucket.parameters().block());
    if (options_.kind != Kind::kGasLoC) return;
    mix(sent, options_.lr, {{slot.anchor.block(), 1.0 - options_.lr}});
  }

  /// x <- keep * x + sum of weight * inbox. Leaves out inboxes of weight 0, so that a plain average
  /// stays exact.
  void mix(const Block& x, double keep, std::vector<Inbox> inboxes) {
    std::erase_if(inboxes, [](const Inbox& inbox) { return inbox.weight == 0.0; });
    enqueue_mix(setup_.stream, x, keep, std::move(inboxes), {}, setup_.simd);
  }

  /// Moves the anchor by the average that has arrived, and then the model.
  void move(Bucket& bucket) {
    const Slot& slot = slots_[bucket];
    const Block x = bucket.parameters().block();
    // First the mean, then the new anchor.
    const Block next = options_.sends_copies() ? slot.sent.block() : x;
    if (options_.kind == Kind::kGasLoC) keep_proposal(slot);
    switch (averages_.take(bucket, step(), next, slot.anchor.block())) {
      case OuterAverages::Taken::kNothing:
        return;
      case OuterAverages::Taken::kAverage:
        move_anchor(slot, next);
        break;
      case OuterAverages::Taken::kNewAnchor:
        setup_.stream.zero(slot.momentum.block());
        break;
    }
    setup_.stream.copy(slot.anchor.block(), next);
    if (options_.sends_copies()) mix(x, options_.blend, {{next, 1.0 - options_.blend}});
    bucket.write_rounded();
  }

  /// Before the mean of y takes the place of y: momentum (y - y before) into `momentum`, and y into
  /// `anchor`, which nothing needs any more.
  void keep_proposal(const Slot& slot) {
    if (const double b = options_.momentum; b > 0.0) {
      mix(slot.momentum.block(), -b, {{slot.sent.block(), b}});
    } else {
      setup_.stream.zero(slot.momentum.block());
    }
    setup_.stream.copy(slot.anchor.block(), slot.sent.block());
  }

  /// Turns the mean in `next` into the new anchor.
  void move_anchor(const Slot& slot, const Block& next) {
    const Block anchor = slot.anchor.block();
    const Block momentum = slot.momentum.block();
    const double b = options_.momentum;
    switch (options_.kind) {
      case Kind::kDiLoCo:
        mix(momentum, b, {{anchor, 1.0}, {next, -1.0}});
        return mix(next, options_.lr, {{anchor, 1.0 - options_.lr}, {momentum, -options_.lr * b}});
      case Kind::kNoLoCo:
        mix(momentum, b, {{next, options_.lr}, {anchor, -options_.lr}});
        return mix(next, 0.0, {{anchor, 1.0}, {momentum, 1.0}});
      case Kind::kGasLoC:
        mix(next, 1.0, {{momentum, 1.0}});
        return setup_.stream.copy(momentum, anchor);
      case Kind::kSlowMo:
        break;
    }
    const double rate = options_.lr * inner_lr();
    if (rate <= kLeastRate) return;
    mix(next, options_.lr, {{anchor, 1.0 - options_.lr}, {momentum, -rate * b}});
    mix(momentum, 0.0, {{anchor, 1.0 / rate}, {next, -1.0 / rate}});
  }

  /// Of the step whose models have been averaged, unless steps have been skipped since.
  [[nodiscard]] double inner_lr() const {
    return setup_.schedule.lr(
        std::max<std::int64_t>(0, setup_.progress.num_updates() - options_.late));
  }

  /// SlowMo divides by outer_lr * lr. Unless this product is above kLeastRate, the average itself
  /// becomes the anchor, and the momentum stays as it is.
  static constexpr double kLeastRate = 1e-12;

  OuterOptions options_;
  AlgorithmSetup setup_;
  OuterAverages averages_;
  SharedMoments moments_;
  PerBucket<Slot> slots_;
  /// Averages that have begun after earlier steps are not to be used.
  std::int64_t forgotten_before_ = 0;
};

Kind kind_of(std::string_view name) {
  const auto& names = outer::kKind.rule.words;
  return static_cast<Kind>(std::ranges::find(names, name) - names.begin());
}

/// What each kind has by default. The authors of DiLoCo and GASLoC use a momentum of 0.9, in runs
/// of many thousand steps with hundreds of steps between two averages. See kMostGain and
/// kMostMomentumOfPairs why it is 0.5 here.
struct Usual {
  double lr;
  double momentum;
  std::string_view rounds;
};
constexpr std::array kUsual = {
    Usual{1.0, 0.5, "all"},
    Usual{0.7, 0.5, "all"},
    Usual{0.7, 0.5, "topology"},
    Usual{0.7, 0.5, "topology"},
};

/// Models that keep moving in one direction move lr / (1 - momentum) times as far as they would
/// with plain averages, as with an inner learning rate so many times as large. A learning rate that
/// suits plain averages bears about this much (docs/guide/algorithms.md).
constexpr double kMostGain = 3.0;
/// In every step it bears more, because a step is a small part of what the momentum remembers.
constexpr double kMostGainInEveryStep = 5.0;
/// With so many steps between two averages the ranks learn most of what their own data teach them,
/// and a move no longer grows with the learning rate. A large momentum then costs little.
constexpr std::int64_t kLongPeriod = 32;

/// Above this momentum the models of pairs drift apart, whatever they learn. Ranks meet one peer
/// after the other, so one round undoes a difference between two halves of the ranks, and the other
/// rounds let it grow. On one-peer-exp it grows from 0.71 on with 8 ranks, and from 0.55 on with
/// 16.
constexpr double kMostMomentumOfPairs = 0.55;

std::string warning_about(const OuterOptions& options) {
  constexpr std::string_view kAdvice =
      "; take algorithm.momentum=0.5, the default (docs/guide/algorithms.md)";
  if (options.follows_topology && options.momentum > kMostMomentumOfPairs) {
    return concat("algorithm.momentum is ", shortest(options.momentum),
                  ", and with averages in pairs the ranks' models may drift apart without bound "
                  "above ",
                  shortest(kMostMomentumOfPairs), kAdvice);
  }
  const double gain = options.lr / (1.0 - options.momentum);
  const double most = options.every == 1 ? kMostGainInEveryStep : kMostGain;
  if (gain <= most || options.every >= kLongPeriod) return "";
  return concat("algorithm.momentum is ", shortest(options.momentum), " and algorithm.lr ",
                shortest(options.lr), ", which works like a learning rate ",
                shortest(std::round(10.0 * gain) / 10.0), " times as large; with averages every ",
                options.every, options.every == 1 ? " step" : " steps", " more than ",
                shortest(most), " times has ruined runs", kAdvice, ", or a smaller optimizer.lr");
}

std::string why_not(const OuterOptions& options, const AlgorithmSetting& setting) {
  const MomentPeriods steps{.second = options.moments.second * options.every,
                            .first = options.moments.first * options.every};
  if (std::string reason = why_not_shared(steps, setting); !reason.empty()) return reason;
  if (options.error_decay < 1.0 && (setting.codec == nullptr || options.follows_topology)) {
    return concat("algorithm.error_decay: ", shortest(options.error_decay),
                  " needs averages of all "
                  "ranks under a codec, because nothing else leaves an error; take rounds: all and "
                  "a comm.codec, or leave error_decay out");
  }
  // Its anchors differ from rank to rank, so moves say too little.
  if (setting.codec == nullptr || options.follows_topology || options.kind != Kind::kGasLoC) {
    return "";
  }
  return concat("algorithm.kind: gasloc with rounds: all cannot send moves, which the codec ",
                setting.codec->name(),
                " needs; take rounds: topology, kind: diloco, or codec fp32");
}

/// Reads a period of moments in steps, and returns it in averages.
std::int64_t read_period(const Options& options, const IntegerOption& option,
                         const OuterOptions& outer) {
  const std::int64_t steps = options.read(option);
  if (steps == 0) return 0;
  if (steps % outer.every != 0) {
    options.fail(option.name, concat(steps, " steps are no multiple of the ", outer.every,
                                     " between two averages of models"));
  }
  if (outer.late > 1) {
    options.fail(option.name, concat("means of moments are due before the next step, which would "
                                     "wait for them in spite of late: ",
                                     outer.late, ", allowed: 0, or late: 1"));
  }
  return steps / outer.every;
}

}  // namespace

namespace {

OuterOptions read_options(const Options& options) {
  OuterOptions read;
  read.kind = kind_of(options.read(outer::kKind));
  read.every = options.read(outer::kEvery);
  const Usual& usual = kUsual[static_cast<std::size_t>(read.kind)];
  read.follows_topology = options.read(outer::kRounds, usual.rounds) == "topology";
  read.lr = options.read(outer::kLr, usual.lr);
  read.momentum = options.read(outer::kMomentum, usual.momentum);
  read.streams = options.read(outer::kStreaming);
  read.overlaps = options.read(outer::kOverlap);
  read.late = options.read(outer::kLate);
  if (!read.overlaps && read.late > 1) {
    options.fail("overlap",
                 concat("is false, and late is ", read.late, ", allowed: true, or late: 1"));
  }
  if (read.late > read.every) {
    options.fail("late", concat(read.late, " steps are more than the ", read.every,
                                " between two averages, allowed: up to the value of every"));
  }
  read.blend = options.read(outer::kBlend, read.late > 1 ? 0.5 : 0.0);
  if (read.blend > 0.0 && read.late == 1) {
    options.fail("blend",
                 "needs late averages: nothing is learnt while an average travels for "
                 "one step, allowed: 0, or late above 1");
  }
  read.error_decay = options.read(outer::kErrorDecay);
  read.moments = {.second = read_period(options, outer::kShareMoments, read),
                  .first = read_period(options, outer::kShareMomentum, read)};
  return read;
}

}  // namespace

std::string outer_warning(const AlgorithmChoice& algorithm) {
  if (algorithm.name() != "outer") return "";
  return warning_about(read_options(Options::parse(algorithm.given())));
}

AlgorithmFactory read_outer(const Options& options) {
  const OuterOptions read = read_options(options);
  return {[read](const AlgorithmSetup& setup) { return std::make_unique<Outer>(read, setup); },
          [read](const AlgorithmSetting& setting) { return why_not(read, setting); },
          read.follows_topology ? TopologyKind::kUndirected : TopologyKind::kNone,
          read.every * read.moments.together(), read.is_plain_and_frequent()};
}

}  // namespace gossamer

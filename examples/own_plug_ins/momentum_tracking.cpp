// Momentum tracking (Takezawa et al., "Momentum Tracking: Momentum Acceleration for Decentralized
// Deep Learning on Heterogeneous Data", TMLR 2023). Every rank keeps a momentum u of its own
// gradients, and an estimate y of the mean momentum of all ranks, which the optimizer uses in the
// place of the gradient:
//
//   u' = beta u + g,   y' = W y + u' - u,   x' = W x - u(y')

#include <array>
#include <memory>

#include "gossamer/base/error.hpp"
#include "gossamer/core/algorithms/bucket_lanes.hpp"
#include "gossamer/optim/block_update.hpp"
#include "gossamer/optim/sweep.hpp"

/// The algorithm's row. Its option is `beta`.
extern const gossamer::AlgorithmEntry kMomentumTracking;

namespace {

using namespace gossamer;

/// y <- (y mixed) + u' - u with u' = beta u + g. As a rule, it lets the sweep mix y, and scale and
/// clip the gradients. The one state is u.
struct MomentumRule {
  static constexpr RuleTraits<1> kTraits = {
      .state_names = {"momentum"}, .every_step = true, .rest_states = 1U};
  template <class T>
  struct Coefficients {
    T beta;
  };
  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate&) const {
    return {static_cast<T>(beta)};
  }
  template <class T, Phase>
  static void apply(const Coefficients<T>& c, T& y, T g, std::array<T, 1>& state) {
    const T before = state[0];
    state[0] = c.beta * before + g;
    y += state[0] - before;
  }
  /// A missing gradient is a gradient of zero, because other ranks may have one.
  template <class T, Phase kPhase>
  static void rest(const Coefficients<T>& c, T& y, std::array<T, 1>& state, T /*before*/) {
    apply<T, kPhase>(c, y, T(0), state);
  }

  double beta;
};

class MomentumTracking : public Algorithm {
 public:
  MomentumTracking(const AlgorithmSetup& setup, double beta)
      : setup_(setup),
        rule_(MomentumRule{beta}),
        parameters_(setup),
        trackers_(setup, {.content = "trackers"}) {
    for (Bucket& bucket : setup.buckets) {
      if (bucket.spec().has_master()) {
        throw ConfigError("own_tracking needs a model in float32 or float64");
      }
      states_.add({.tracker = bucket.add_state("tracker"), .momentum = bucket.add_state("sum")});
    }
  }

  Intake before_update(Bucket& bucket) override {
    const State& state = states_[bucket];
    trackers_[bucket].wait();
    parameters_[bucket].wait();
    const Block tracker = state.tracker.block();
    BlockUpdate update{.parameters = tracker,
                       .segments = bucket.segments(),
                       .decision = bucket.decision(),
                       .intake = trackers_[bucket].take(),
                       .simd = setup_.simd,
                       .pool = setup_.pool};
    update.states[0] = state.momentum.block().data;
    enqueue_update(setup_.stream, rule_, std::move(update));
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      bucket.replace_gradient(entry, bucket.part(tracker, entry));
    }
    Intake intake = parameters_[bucket].take();
    intake.gradients_are_scaled = true;
    return intake;
  }

  void after_update(Bucket& bucket) override {
    const std::int64_t k = setup_.progress.round();
    parameters_[bucket].start(k, bucket.parameters());
    trackers_[bucket].start(k, states_[bucket].tracker);
  }

 private:
  struct State {
    Buffer tracker;
    Buffer momentum;
  };

  AlgorithmSetup setup_;
  RuleOptimizer<MomentumRule> rule_;
  BucketLanes parameters_;
  BucketLanes trackers_;
  PerBucket<State> states_;
};

constexpr NumberOption kBeta{"beta",
                             "part of the momentum that stays",
                             {.fallback = 0.9, .min = 0.0, .max = 1.0, .below_max = true}};
constexpr std::array kOptions = option_list(kBeta);

AlgorithmFactory read_momentum_tracking(const Options& options) {
  const double beta = options.read(kBeta);
  return [beta](const AlgorithmSetup& setup) {
    return std::make_unique<MomentumTracking>(setup, beta);
  };
}

}  // namespace

const AlgorithmEntry kMomentumTracking = {.name = "own_tracking",
                                          .summary = "gossip with an estimate of the mean momentum",
                                          .options = kOptions,
                                          .topologies = TopologyKind::kUndirected,
                                          .takes_codec = true,
                                          .processors_only = "its rule has no kernel",
                                          .read = read_momentum_tracking};

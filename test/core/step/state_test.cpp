// Tests that a run that is saved, destroyed and loaded goes on bit for bit.

#include "test/base/thrown.hpp"
#include "test/core/algorithms/algorithm_variants.hpp"
#include "test/core/problem.hpp"
#include "test/core/step/saved_state.hpp"
#include "test/support/sanitized.hpp"

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "core/exchange/grid_lane.hpp"
#include "topology/registry.hpp"

namespace gossamer::state_test {
namespace {

/// An optimizer and the options that give it all its states.
constexpr std::array kOptimizers = {
    std::pair{"sgd", "momentum: 0.9"},
    std::pair{"adam", ""},
    std::pair{"adamw", ""},
    std::pair{"adamw", "mixing_momentum: 0.3"},
    std::pair{"accum_adam", "accum_iter: 3"},
    std::pair{"accum_adamw", "accum_iter: 3"},
    std::pair{"qadam", "warmup: 7"},
    std::pair{"lion", ""},
    std::pair{"muon", ""},
    std::pair{"qg_sgd", ""},
    std::pair{"extra", "rule: {name: accum_adamw, accum_iter: 3}"},
};

/// Streaming depends on the buckets, so that the recursion does not follow it.
constexpr const char* kStreaming = "every: 4, kind: diloco, streaming: true";
constexpr const char* kLateStreaming = "every: 4, kind: noloco, streaming: true, late: 3";

bool streams(std::string_view options) {
  return options.find("streaming: true") != std::string_view::npos;
}

std::vector<AlgorithmVariant> algorithms() {
  std::vector<AlgorithmVariant> all = algorithm_variants();
  all.emplace_back("outer", kStreaming);
  all.emplace_back("outer", kLateStreaming);
  return all;
}

TEST(SavedState, IsTestedForEveryOptimizer) {
  std::set<std::string> found;
  for (const auto& [name, options] : kOptimizers) found.insert(name);
  const std::vector<std::string> names = optimizer_names();
  EXPECT_EQ(found, std::set<std::string>(names.begin(), names.end()));
}

struct Case {
  Problem problem;
  std::string optimizer;
  std::string optimizer_options;
  /// The number of steps before the run is saved.
  int saved_after = 5;
  /// The codec after loading; empty: the same.
  std::string codec_after;
  /// See train().
  bool replans = false;
  /// After so many steps all ranks halve their parameters; negative: never.
  int written_after = -1;

  [[nodiscard]] Pipeline::Config config() const {
    Pipeline::Config config = config_of(problem);
    config.optimizer = make_optimizer(optimizer, Options::parse(optimizer_options));
    return config;
  }
};

using Values = std::vector<std::vector<double>>;

/// Parameters of all ranks at the end. `reloads`: after c.saved_after steps the model is saved and
/// destroyed, and another one with buckets of `bucket_bytes` goes on. With c.replans the model
/// stays, and goes on with these buckets.
Values train(const Case& c, bool reloads, std::int64_t bucket_bytes) {
  FakeNcclHub hub;
  Values values(static_cast<std::size_t>(c.problem.num_ranks));
  run_ranks(c.problem.num_ranks, [&](Communicator& communicator, const World& world) {
    TestDevice device(c.problem.where, communicator, hub);
    Problem problem = c.problem;
    Pipeline::Config config = c.config();
    config.stream = device.stream();
    auto model =
        std::unique_ptr<ToyModel>(new ToyModel(model_of(problem, device.communicator(), config)));
    for (int step = 0; step < problem.num_steps; ++step) {
      if (step == c.written_after) {
        model->pipeline().drain();
        for (const ParameterMemory& memory : model->pipeline().memory()) {
          for (float& x : memory.parameters.block().as<float>()) x *= 0.5F;
        }
        model->pipeline().forget_arrived();
      }
      if (reloads && c.replans && step == c.saved_after) {
        model->replan(bucket_bytes);
      } else if (reloads && step == c.saved_after) {
        const SavedState state = saved(model->pipeline());
        // Saving must change nothing: a second save gives the same state.
        EXPECT_EQ(state.blocks, saved(model->pipeline()).blocks);
        problem.bucket_bytes = bucket_bytes;
        if (!c.codec_after.empty()) config.exchange.codec = find_codec(c.codec_after);
        model = std::unique_ptr<ToyModel>(
            new ToyModel(model_of(problem, device.communicator(), config)));
        load(model->pipeline(), state);
      }
      train_step(problem, *model, world.rank, step);
    }
    model->pipeline().drain();
    values[static_cast<std::size_t>(world.rank)] = model->values();
  });
  return values;
}

/// The run goes on as if it had not been interrupted, with another model and with new buckets.
void expect_goes_on(Case c, std::int64_t bucket_bytes, const Values& expected) {
  EXPECT_EQ(train(c, true, bucket_bytes), expected) << "loaded, " << name_of(c.problem.where);
  c.replans = true;
  EXPECT_EQ(train(c, true, bucket_bytes), expected) << "replanned, " << name_of(c.problem.where);
}

Case case_of(const char* algorithm, const char* options) {
  Case c;
  c.problem.num_ranks = 4;
  c.problem.topology =
      make_topology(topology_for(algorithm, "one-peer-exp"), {.size = 4, .node_size = 2});
  c.problem.algorithm = algorithm;
  c.problem.algorithm_options = options;
  // The ranks of a node begin with equal parameters.
  c.problem.same_start = AlgorithmChoice(algorithm).entry().topologies == TopologyKind::kNodes;
  c.problem.dtype = DType::kFloat32;
  c.problem.num_steps = 11;
  c.problem.lr = 0.02;
  c.problem.shuffles = false;
  c.problem.present = one_is_missing_of(5);
  return c;
}

/// Which share of the pairs of algorithm and optimizer a mode takes: all, or each mode another
/// quarter, under sanitizers another fifteenth.
enum class Share : std::uint8_t { kAll, kQuarter };

class EveryClipMode : public testing::TestWithParam<std::tuple<ClipMode, Share>> {};
constexpr auto kModes = {ClipMode::kNone, ClipMode::kPerBucket, ClipMode::kGlobal,
                         ClipMode::kDelayedGlobal};
INSTANTIATE_TEST_SUITE_P(Modes, EveryClipMode,
                         testing::Combine(testing::ValuesIn(kModes),
                                          testing::Values(Share::kQuarter)));
INSTANTIATE_TEST_SUITE_P(Wide, EveryClipMode,
                         testing::Combine(testing::ValuesIn(kModes), testing::Values(Share::kAll)));

TEST_P(EveryClipMode, LetsEveryAlgorithmAndOptimizerGoOnBitForBit) {
  const auto [mode, share] = GetParam();
  // 15 has no factor in common with the number of optimizers, so all of them have their turn.
  const std::size_t parts = kSanitized ? 15 : kModes.size();
  std::size_t count = 0;
  for (const auto& [algorithm, options] : algorithms()) {
    for (const auto& [optimizer, optimizer_options] : kOptimizers) {
      const bool is_mine = count++ % parts == static_cast<std::size_t>(mode);
      if (share == Share::kQuarter && !is_mine) continue;
      const AlgorithmChoice choice(algorithm, Options::parse(options));
      const auto rule = make_optimizer(optimizer, Options::parse(optimizer_options));
      if (!choice.why_not({.optimizer = rule.get()}).empty()) continue;
      SCOPED_TRACE(concat(algorithm, " {", options, "}, ", optimizer));
      Case c = case_of(algorithm, options);
      c.optimizer = optimizer;
      c.optimizer_options = optimizer_options;
      c.problem.gradients = {.clip_mode = mode, .clip_norm = 0.6};
      const Values expected = train(c, false, 0);
      EXPECT_EQ(train(c, true, c.problem.bucket_bytes), expected);
      // A result that depends on the buckets cannot go on unchanged with other buckets.
      const bool depends = mode == ClipMode::kPerBucket || streams(options);
      if (depends) continue;
      EXPECT_EQ(train(c, true, 1), expected) << "with other buckets";
      c.replans = true;
      EXPECT_EQ(train(c, true, 1), expected) << "replanned";
      EXPECT_EQ(train(c, true, 1 << 20), expected) << "replanned into one bucket";
    }
  }
}

TEST(SavedState, IsTheSameWhereStreamsLag) {
  constexpr std::array kPlaces = {Where::kLagging, Where::kDevice, Where::kNccl};
  std::size_t count = 0;
  for (const auto& [algorithm, options] : algorithms()) {
    ++count;
    for (const Where where : kPlaces) {
      if (!runs_at(algorithm, where, options)) continue;
      // Under sanitizers every algorithm is at one place.
      if (kSanitized && where != kPlaces[count % kPlaces.size()]) continue;
      SCOPED_TRACE(concat(name_of(where), ", ", algorithm, " {", options, "}"));
      Case c = case_of(algorithm, options);
      c.optimizer = "accum_adamw";
      c.problem.gradients = {.clip_mode = ClipMode::kDelayedGlobal, .clip_norm = 0.6};
      const Values expected = train(c, false, 0);
      c.problem.where = where;
      const std::int64_t bucket_bytes = streams(options) ? c.problem.bucket_bytes : 1;
      expect_goes_on(c, bucket_bytes, expected);
    }
  }
}

TEST(SavedState, HasAveragesUnderWayAtEveryStep) {
  for (const auto& [algorithm, options] : algorithms()) {
    if (std::string_view(algorithm) != "outer") continue;
    Case c = case_of(algorithm, options);
    c.optimizer = "sgd";
    const Values expected = train(c, false, 0);
    for (c.saved_after = 1; c.saved_after < 10; ++c.saved_after) {
      SCOPED_TRACE(concat(options, ", saved after ", c.saved_after));
      expect_goes_on(c, c.problem.bucket_bytes, expected);
      if (streams(options)) continue;
      expect_goes_on(c, 1, expected);
    }
  }
}

TEST(SavedState, RepeatsAnAverageOfMoments) {
  const std::string moments = "share_moments: 3, share_momentum: 6";
  using Way = std::pair<const char*, std::string>;
  for (const auto& [algorithm, plain] :
       {Way{"gossip", ""}, Way{"outer", "every: 3, kind: diloco, "},
        Way{"outer", "every: 3, kind: noloco, "},
        Way{"outer", "every: 3, kind: noloco, streaming: true, "}}) {
    for (const char* optimizer : {"adamw", "accum_adamw"}) {
      // Averages begin after 3, 6 and 9 steps; under gossip after 1 and 2 steps as well.
      for (const int step : {3, 5, 6}) {
        SCOPED_TRACE(concat(algorithm, ", ", plain, optimizer, " after ", step, " steps"));
        Case c = case_of(algorithm, (plain + moments).c_str());
        c.optimizer = optimizer;
        c.optimizer_options = "betas: [0.9, 0.9]";
        c.saved_after = step;
        const Values expected = train(c, false, 0);
        Case unshared = c;
        unshared.problem.algorithm_options = plain + "share_moments: 0";
        EXPECT_NE(train(unshared, false, 0), expected);
        // With streaming, other buckets have other turns.
        const std::int64_t bytes = contains(plain, "streaming") ? c.problem.bucket_bytes : 1;
        expect_goes_on(c, bytes, expected);
      }
    }
  }
}

TEST(SavedState, IsTheSameForEveryCodec) {
  for (const char* codec : {"fp32", "bf16", "fp16"}) {
    for (const auto& [algorithm, options] : {std::pair{"gossip", ""},
                                             {"gradient_tracking", ""},
                                             {"allreduce", ""},
                                             {"allreduce", "delay: 1"}}) {
      SCOPED_TRACE(concat(codec, ", ", algorithm, " {", options, "}"));
      Case c = case_of(algorithm, options);
      c.optimizer = "accum_adamw";
      c.problem.codec = codec;
      const Values expected = train(c, false, 0);
      EXPECT_EQ(train(c, true, c.problem.bucket_bytes), expected);
      expect_goes_on(c, 1, expected);
      c.replans = true;
      c.problem.shares_memory = false;
      EXPECT_EQ(train(c, true, 1), expected) << "without shared memory";
    }
  }
}

TEST(SavedState, RepeatsASumInBytes) {
  for (const char* options : {"delay: 1", "delay: 1, overlap: false"}) {
    Case c = case_of("allreduce", options);
    c.optimizer = "accum_adamw";
    c.problem.codec = "int8";
    const Values expected = train(c, false, 0);
    expect_goes_on(c, c.problem.bucket_bytes, expected);
  }
}

TEST(SavedState, GoesOnInBothPhasesOfQAdam) {
  for (const char* codec : {"fp32", "bf16", "int8"}) {
    for (const int saved_after : {2, 3, 6}) {
      SCOPED_TRACE(concat(codec, ", saved after ", saved_after));
      Case c = case_of("allreduce", "sends: momentum");
      c.optimizer = "qadam";
      c.optimizer_options = "warmup: 3";
      c.problem.codec = codec;
      c.saved_after = saved_after;
      const Values expected = train(c, false, 0);
      expect_goes_on(c, c.problem.bucket_bytes, expected);
    }
  }
}

/// Codecs round differently, so the parameters differ a little.
void expect_near(const Values& found, const Values& expected, double most = 0.05) {
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    for (std::size_t e = 0; e < expected[rank].size(); ++e) {
      EXPECT_NEAR(found[rank][e], expected[rank][e], most);
    }
  }
}

TEST(SavedState, HoldsGridsAndVotes) {
  for (const char* algorithm : {"gossip", "gradient_tracking"}) {
    Case c = case_of(algorithm, "");
    c.optimizer = "accum_adamw";
    c.problem.codec = "int8";
    const int window = static_cast<int>(GridLane::kWindow);
    c.problem.num_steps = 6 * window;
    const Values expected = train(c, false, 0);
    for (const int saved_after : {1, window + 1, 3 * window - 1, 3 * window, 3 * window + 1}) {
      SCOPED_TRACE(concat(algorithm, ", saved after ", saved_after));
      c.saved_after = saved_after;
      expect_goes_on(c, c.problem.bucket_bytes, expected);
      c.replans = true;
      expect_near(train(c, true, 1), expected);
      c.replans = false;
    }
    // A run may go on with another codec.
    for (const auto& [before, after] :
         {std::pair{"int8", "bf16"}, {"bf16", "int8"}, {"int8", "int4"}, {"int4", "int8"}}) {
      c.problem.codec = before;
      c.codec_after = after;
      // Four bits round 16 times as much.
      const bool is_coarse = contains(before, "int4") || contains(after, "int4");
      expect_near(train(c, true, c.problem.bucket_bytes), expected, is_coarse ? 0.3 : 0.05);
    }
    c.problem.codec = "int8";
    c.codec_after.clear();
    // Every bucket has a grid of its own, so other buckets give other bits.
    expect_near(train(c, true, 1), expected);
  }
}

TEST(SavedState, HoldsWhatACodecHasLeftOut) {
  for (const char* options :
       {"every: 3, kind: diloco", "every: 3, kind: diloco, late: 2",
        "every: 3, kind: noloco, late: 3, blend: 0.3", "every: 4, kind: diloco, streaming: true"}) {
    for (const char* codec : {"bf16", "int4", "topk"}) {
      const bool in_pairs = contains(options, "noloco");
      if (in_pairs && find_codec(codec)->is_sparse()) continue;
      Case c = case_of("outer", options);
      c.problem.same_start = true;
      c.optimizer = "accum_adamw";
      c.problem.codec = codec;
      c.problem.num_steps = in_pairs ? 30 : 14;
      const Values expected = train(c, false, 0);
      for (const int saved_after : {1, 2, 3, 4, 5, 6, 7, 8, 13}) {
        if (kSanitized && saved_after % 3 != 0) continue;
        SCOPED_TRACE(concat(options, ", ", codec, ", saved after ", saved_after));
        c.saved_after = saved_after;
        expect_goes_on(c, c.problem.bucket_bytes, expected);
        if (saved_after % 3 != 0) continue;
        c.problem.where = saved_after == 3 ? Where::kDevice : Where::kNccl;
        expect_goes_on(c, c.problem.bucket_bytes, expected);
        c.problem.where = Where::kHost;
      }
      // A run may go on with another codec, or without. One average follows, or two.
      c.saved_after = 13;
      for (const char* after : {"fp32", "int8"}) {
        c.codec_after = after;
        expect_near(train(c, true, c.problem.bucket_bytes), expected, 0.2);
      }
    }
  }
}

TEST(SavedState, HoldsWhetherRanksHaveOneAnchor) {
  for (const char* options :
       {"every: 1, kind: diloco", "every: 2, kind: diloco", "every: 3, kind: noloco, rounds: all",
        "every: 3, kind: diloco, late: 3, blend: 0.3", "every: 4, kind: diloco, late: 2",
        "every: 4, kind: diloco, streaming: true",
        "every: 4, kind: diloco, streaming: true, late: 3"}) {
    Case c = case_of("outer", options);
    c.problem.num_ranks = 3;
    c.problem.same_start = true;
    c.optimizer = "adamw";
    c.problem.codec = "int8";
    c.problem.num_steps = 20;
    c.problem.bucket_bytes = 128;
    for (const int written_after : {4, 5, 6}) {
      c.written_after = written_after;
      const Values expected = train(c, false, 0);
      for (int saved_after = 4; saved_after < 16; saved_after += kSanitized ? 9 : 1) {
        SCOPED_TRACE(
            concat(options, ", written after ", written_after, ", saved after ", saved_after));
        c.saved_after = saved_after;
        expect_goes_on(c, c.problem.bucket_bytes, expected);
        if (saved_after % 6 != 1) continue;
        c.problem.where = Where::kDevice;
        EXPECT_EQ(train(c, true, c.problem.bucket_bytes), expected) << "on a device";
        c.problem.where = Where::kHost;
      }
    }
  }
}

TEST(SavedState, HoldsMasterCopiesAndSkippedSteps) {
  Case c = case_of("gossip", "");
  c.optimizer = "adamw";
  c.problem.dtype = DType::kBFloat16;
  c.problem.gradients.nonfinite = NonFinite::kSkip;
  c.problem.breaks = [](int rank, int step) { return rank == 1 && step % 3 == 1; };
  const Values expected = train(c, false, 0);
  expect_goes_on(c, 1, expected);
}

TEST(SavedState, NamesWhatBelongsToAParameter) {
  run_ranks(1, [](Communicator& communicator, const World&) {
    Case c = case_of("gradient_tracking", "");
    c.problem.num_ranks = 1;
    c.problem.topology = make_topology("ring", {});
    c.optimizer = "adam";
    c.problem.sizes = {3};
    ToyModel model = model_of(c.problem, communicator, c.config());
    const SavedState state = saved(model.pipeline());
    std::set<std::string> names;
    for (const auto& [name, bytes] : state.blocks) names.insert(name);
    EXPECT_EQ(names,
              (std::set<std::string>{"p0", "p0/m", "p0/v", "p0/tracker", "p0/last_gradient"}));
    EXPECT_TRUE(state.integers.contains("p0/updates"));
    EXPECT_TRUE(state.integers.contains("run/steps"));
  });
}

/// After `num_steps` steps all ranks forget what has arrived, or rank 0 alone. If `reloads`, they
/// are saved and loaded then. Four more steps follow.
Values forget_and_go_on(const Case& c, int num_steps, bool alone, bool reloads) {
  Values values(static_cast<std::size_t>(c.problem.num_ranks));
  run_ranks(c.problem.num_ranks, [&](Communicator& communicator, const World& world) {
    auto model =
        std::unique_ptr<ToyModel>(new ToyModel(model_of(c.problem, communicator, c.config())));
    for (int step = 0; step < num_steps; ++step) train_step(c.problem, *model, world.rank, step);
    model->pipeline().drain();
    if (!alone || world.rank == 0) model->pipeline().forget_arrived();
    if (reloads) {
      const SavedState state = saved(model->pipeline());
      model =
          std::unique_ptr<ToyModel>(new ToyModel(model_of(c.problem, communicator, c.config())));
      load(model->pipeline(), state);
    }
    for (int step = num_steps; step < num_steps + 4; ++step) {
      train_step(c.problem, *model, world.rank, step);
    }
    model->pipeline().drain();
    values[static_cast<std::size_t>(world.rank)] = model->values();
  });
  return values;
}

TEST(SavedState, RemembersThatNothingIsToBeMixed) {
  // The mean model was kept before saving, so the next step mixes nothing.
  const int window = static_cast<int>(GridLane::kWindow);
  for (const auto& [algorithm, codec] : {std::pair{"gossip", "fp32"},
                                         {"gossip", "int8"},
                                         {"gradient_tracking", "fp32"},
                                         {"outer", "fp32"},
                                         {"choco", "fp32"},
                                         {"relay", "fp32"},
                                         {"late_average", "fp32"},
                                         {"node_gossip", "fp32"}}) {
    Case c = case_of(algorithm, "");
    c.optimizer = "sgd";
    c.problem.codec = codec;
    if (std::string_view(algorithm) != "node_gossip") {
      c.problem.num_ranks = 2;
      c.problem.topology = make_topology("complete", {.size = 2, .node_size = 2});
    }
    for (const bool alone : {false, true}) {
      // Ranks that average all models forget together.
      if (alone && std::string_view(algorithm) == "outer") continue;
      for (const int num_steps : {1, 3 * window - 1, 3 * window, 3 * window + 1}) {
        // Windows are those of grids.
        if (num_steps > 1 && c.problem.codec != "int8") continue;
        SCOPED_TRACE(concat(algorithm, ", ", codec, ", ", num_steps, alone ? ", alone" : ""));
        EXPECT_EQ(forget_and_go_on(c, num_steps, alone, true),
                  forget_and_go_on(c, num_steps, alone, false));
      }
    }
  }
}

}  // namespace
}  // namespace gossamer::state_test

// Tests of Pipeline::switch_to().

#include "test/core/algorithms/algorithm_variants.hpp"
#include "test/core/problem.hpp"
#include "test/core/step/saved_state.hpp"
#include "test/core/test_topologies.hpp"
#include "test/support/sanitized.hpp"
#include "test/topology/irregular.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "comm/forwarding_communicator.hpp"
#include "core/bucket/model_average.hpp"
#include "core/step/algorithm_switch.hpp"
#include "topology/registry.hpp"

namespace gossamer::switch_test {
namespace {

struct Phase {
  std::string algorithm = "gossip";
  std::string options = {};
  std::string topology = "one-peer-exp";
  bool average = false;
};

/// Phases of c.phase_steps steps each.
struct Case {
  Problem problem;
  std::vector<Phase> phases;
  int phase_steps = 3;
  std::string optimizer = "accum_adamw";
  std::string optimizer_options = "accum_iter: 2";

  [[nodiscard]] AlgorithmSwitch phase(std::size_t p) const {
    const Phase& phase = phases[p];
    const int size = problem.num_ranks;
    return {.algorithm = {phase.algorithm, Options::parse(phase.options)},
            .topology = make_topology(topology_for(phase.algorithm, phase.topology),
                                      {.size = size, .node_size = std::max(size / 2, 1)}),
            .average = phase.average};
  }
  [[nodiscard]] Pipeline::Config config(std::size_t p, Stream* stream) const {
    Pipeline::Config config = config_of(problem);
    const AlgorithmSwitch wanted = phase(p);
    config.exchange = wanted.after(config.exchange);
    config.optimizer = make_optimizer(optimizer, Options::parse(optimizer_options));
    config.stream = stream;
    return config;
  }
};

Case case_of(std::vector<Phase> phases) {
  Case c;
  c.phases = std::move(phases);
  c.problem.num_ranks = 4;
  c.problem.dtype = DType::kFloat32;
  c.problem.lr = 0.02;
  c.problem.present = one_is_missing_of(5);
  return c;
}

using Model = std::unique_ptr<ToyModel>;

Model make_model(const Case& c, TestDevice& device, std::size_t phase) {
  return Model(
      new ToyModel(model_of(c.problem, device.communicator(), c.config(phase, device.stream()))));
}

/// Collective: what all ranks have when they are averaged.
void average(SavedState& state, Communicator& communicator) {
  const auto largest = [&](double own) {
    return std::ranges::max(gather_numbers(communicator, own));
  };
  for (auto& [name, bytes] : state.blocks) {
    // In the order of names, which is the same on all ranks.
    const auto numel = static_cast<std::int64_t>(bytes.size() / sizeof(float));
    InlineStream stream;
    const Buffer buffer(numel, DType::kFloat32);
    if (numel > 0) std::memcpy(buffer.block().data, bytes.data(), bytes.size());
    static_cast<void>(ModelAverage(communicator, stream, {{.parameters = buffer}}));
    if (numel > 0) std::memcpy(bytes.data(), buffer.block().data, bytes.size());
  }
  for (auto& [name, number] : state.reals) {
    const std::vector<double> all = gather_numbers(communicator, number);
    number = std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
  }
  for (auto& [name, number] : state.integers) {
    number = static_cast<std::int64_t>(largest(static_cast<double>(number)));
  }
}

/// A new model that goes on with the parameters of an old one, with the states of its optimizer,
/// and with its numbers of steps.
Model glue(const Case& c, TestDevice& device, ToyModel& old, std::size_t phase) {
  SavedState from = saved(old.pipeline());
  const auto optimizer = make_optimizer(c.optimizer, Options::parse(c.optimizer_options));
  const auto stays = [&](const std::string& name) {
    if (name.find('/') == std::string::npos) return true;
    const std::string last = name.substr(name.find('/') + 1);
    return std::ranges::find(optimizer->state_names(), last) != optimizer->state_names().end() ||
           last == "updates" || last == "steps" || last == "skipped_steps" ||
           last == "last_gradient_norm";
  };
  const auto goes = [&](const auto& piece) { return !stays(piece.first); };
  std::erase_if(from.blocks, goes);
  std::erase_if(from.reals, goes);
  std::erase_if(from.integers, goes);
  if (c.phase(phase).averages()) average(from, device.communicator());
  // An algorithm may copy the parameters when it is made.
  const auto infos = parameters_of_sizes(c.problem.sizes, c.problem.dtype, c.problem.weight_decay);
  std::vector<double> start;
  for (const ParameterInfo& info : infos) {
    const std::vector<char>& bytes = from.blocks.at(info.name);
    const std::vector<double> values = read_block({bytes.data(), info.numel(), DType::kFloat32});
    start.insert(start.end(), values.begin(), values.end());
  }
  Model next = std::make_unique<ToyModel>(
      device.communicator(), c.config(phase, device.stream()), infos,
      plan_buckets(infos, declared_order(infos.size()), c.problem.bucket_bytes), start);
  SavedState state = saved(next->pipeline());
  for (auto& [name, block] : from.blocks) state.blocks[name] = block;
  for (auto& [name, number] : from.reals) state.reals[name] = number;
  for (auto& [name, number] : from.integers) state.integers[name] = number;
  state.integers["run/first_step"] = from.integers.at("run/steps");
  load(next->pipeline(), state);
  return next;
}

/// values[rank], after every phase.
using Values = std::vector<std::vector<std::vector<double>>>;

enum class How { kSwitched, kGlued, kReloaded };

/// kReloaded: switched, and a step after every switch the model is saved, and loaded into a new
/// one.
Values train(const Case& c, How how) {
  FakeNcclHub hub;
  Values values(static_cast<std::size_t>(c.problem.num_ranks));
  run_ranks(c.problem.num_ranks, [&](Communicator& communicator, const World& world) {
    TestDevice device(c.problem.where, communicator, hub);
    Model model = make_model(c, device, 0);
    int step = 0;
    for (std::size_t phase = 0; phase < c.phases.size(); ++phase) {
      if (phase > 0 && how == How::kGlued) {
        model = glue(c, device, *model, phase);
      } else if (phase > 0) {
        model->pipeline().switch_to(c.phase(phase));
      }
      for (int i = 0; i < c.phase_steps; ++i, ++step) {
        if (how == How::kReloaded && i < 2) {
          const SavedState state = saved(model->pipeline());
          model = make_model(c, device, phase);
          load(model->pipeline(), state);
        }
        train_step(c.problem, *model, world.rank, step);
      }
      model->pipeline().drain();
      values[static_cast<std::size_t>(world.rank)].push_back(model->values());
      EXPECT_EQ(model->pipeline().progress().num_steps, step);
    }
  });
  return values;
}

void expect_equals_glued_runs(const Case& c) {
  const Values switched = train(c, How::kSwitched);
  EXPECT_EQ(switched, train(c, How::kGlued)) << "glued";
  EXPECT_EQ(switched, train(c, How::kReloaded)) << "reloaded";
  EXPECT_NE(switched.front().front(), switched.front().back()) << "something has been trained";
}

TEST(SwitchTo, EqualsGluedRunsForEveryAlgorithm) {
  for (const auto& [algorithm, options] : kSanitized ? richest_variants() : algorithm_variants()) {
    for (const bool average : {false, true}) {
      SCOPED_TRACE(concat(algorithm, " {", options, "}", average ? ", average" : ""));
      const Phase phase{.algorithm = algorithm, .options = options};
      Case c = case_of({{}, phase, {.topology = "ring", .average = average}, phase});
      c.phase_steps = 2;
      if (average) {
        c.problem.gradients = {.clip_mode = ClipMode::kDelayedGlobal, .clip_norm = 0.6};
      }
      if (average && shows_mixing(algorithm, options)) {
        c.optimizer = "extra";
        c.optimizer_options = "rule: {name: sgd, momentum: 0.9}";
      }
      expect_equals_glued_runs(c);
    }
  }
}

TEST(SwitchTo, EqualsGluedRunsWhereStreamsLag) {
  for (const Where where : {Where::kLagging, Where::kDevice, Where::kNccl}) {
    SCOPED_TRACE(name_of(where));
    Case c = case_of({{}, {.algorithm = "allreduce"}, {.topology = "hierarchical"}, {}});
    const Values expected = train(c, How::kSwitched);
    c.problem.where = where;
    EXPECT_EQ(train(c, How::kSwitched), expected);
    EXPECT_EQ(train(c, How::kReloaded), expected);
  }
}

TEST(SwitchTo, EqualsGluedRunsUnderCodecs) {
  for (const char* codec : {"bf16", "fp16", "int8"}) {
    SCOPED_TRACE(codec);
    Case c = case_of({{},
                      {.algorithm = "allreduce"},
                      {.algorithm = "gradient_tracking", .topology = "ring"},
                      {.algorithm = "allreduce", .options = "delay: 1"}});
    c.problem.codec = codec;
    c.phase_steps = 20;
    expect_equals_glued_runs(c);
  }
  Case c = case_of({{}, {.algorithm = "allreduce"}, {}});
  const Values expected = train(c, How::kSwitched);
  c.problem.shares_memory = false;
  EXPECT_EQ(train(c, How::kSwitched), expected) << "without shared memory";
}

TEST(SwitchTo, KeepsMasterCopiesAndSkippedSteps) {
  Case c = case_of({{}, {.algorithm = "allreduce"}, {}});
  c.problem.dtype = DType::kBFloat16;
  c.problem.gradients.nonfinite = NonFinite::kSkip;
  c.problem.breaks = [](int rank, int step) { return rank == 1 && step % 3 == 2; };
  expect_equals_glued_runs(c);
}

TEST(SwitchTo, GivesEqualModelsToAlgorithmsThatNeedThem) {
  for (const auto& [algorithm, options] : algorithm_variants()) {
    SCOPED_TRACE(concat(algorithm, " {", options, "}"));
    const AlgorithmEntry& entry = AlgorithmChoice(algorithm).entry();
    Case c = case_of({{}, {.algorithm = algorithm, .options = options}});
    run_ranks(c.problem.num_ranks, [&](Communicator& communicator, const World& world) {
      FakeNcclHub hub;
      TestDevice device(Where::kHost, communicator, hub);
      const Model model = make_model(c, device, 0);
      for (int step = 0; step < 3; ++step) train_step(c.problem, *model, world.rank, step);
      model->pipeline().switch_to(c.phase(1));
      const auto distance = [&] {
        return ModelAverage(communicator, model->stream(), model->pipeline().memory()).distance();
      };
      EXPECT_EQ(distance() < 1e-6, entry.needs_equal_models());
    });
    if (entry.equal_models != EqualModels::kAfterEveryStep) continue;
    const Values values = train(c, How::kSwitched);
    for (const auto& rank : values) EXPECT_EQ(rank[1], values[0][1]);
  }
}

/// The text of the ConfigError of a switch; empty if it succeeds.
std::string config_error(ToyModel& model, const AlgorithmSwitch& to) {
  try {
    model.pipeline().switch_to(to);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(SwitchTo, RefusesOnAllRanksWhatTheyDoNotAgreeOn) {
  const auto random = [](const char* seed) {
    return std::shared_ptr<const Topology>(make_topology(
        "random-matching", {.size = 4, .node_size = 4}, Options::parse(concat("seed: ", seed))));
  };
  const std::shared_ptr<const Topology> ring = make_topology("ring", {.size = 4, .node_size = 4});
  struct Pair {
    AlgorithmSwitch most;
    AlgorithmSwitch other;
    const char* text;
  };
  const auto outer = [](const char* options) {
    return AlgorithmSwitch{.algorithm = {"outer", Options::parse(options)}};
  };
  const std::vector<Pair> pairs = {
      {{.algorithm = "allreduce"}, {.algorithm = "local"}, "rank 0 has \"the algorithm allreduce"},
      {outer("every: 4"), outer("every: 5"), "every: 5"},
      {{.topology = ring}, {.topology = random("1")}, "the topology ring"},
      {{.topology = random("2")}, {.topology = random("1")}, "the topology random-matching"},
      {{.topology = ring}, {.topology = ring, .average = true}, "their mean"},
      // All ranks agree on what cannot be.
      {{.topology = nullptr}, {.topology = nullptr}, "needs a topology"},
      {{.algorithm = "choco", .topology = ring}, {.algorithm = "choco", .topology = ring}, "round"},
  };
  const Case c = case_of({{}, {.algorithm = "allreduce"}});
  const Values expected = train(c, How::kSwitched);
  FakeNcclHub hub;
  run_ranks(4, [&](Communicator& communicator, const World& world) {
    TestDevice device(Where::kHost, communicator, hub);
    const Model model = make_model(c, device, 0);
    for (int step = 0; step < 3; ++step) train_step(c.problem, *model, world.rank, step);
    for (const Pair& pair : pairs) {
      const std::string text = config_error(*model, world.rank == 2 ? pair.other : pair.most);
      EXPECT_NE(text.find(pair.text), std::string::npos) << text;
    }
    // Nothing has changed.
    model->pipeline().switch_to(c.phase(1));
    for (int step = 3; step < 6; ++step) train_step(c.problem, *model, world.rank, step);
    model->pipeline().drain();
    EXPECT_EQ(model->values(), expected[static_cast<std::size_t>(world.rank)].back());
  });
}

TEST(SwitchTo, RefusesOtherStepsAndTheInsideOfAStep) {
  Case c = case_of({});
  c.problem.num_ranks = 3;
  c.phases = {{.algorithm = "local", .topology = "ring"}, {.topology = "ring"}};
  run_ranks(3, [&](Communicator& communicator, const World& world) {
    FakeNcclHub hub;
    TestDevice device(Where::kHost, communicator, hub);
    const Model model = make_model(c, device, 0);
    const int num_steps = world.rank == 1 ? 3 : 2;
    for (int step = 0; step < num_steps; ++step) {
      train_step(c.problem, *model, world.rank, step);
    }
    const std::string text = config_error(*model, c.phase(1));
    EXPECT_NE(text.find("after step 2\", rank 1 has \"after step 3"), std::string::npos) << text;
    model->offer(0, std::vector<double>(c.problem.num_values(), 1.0));
    EXPECT_THROW(model->pipeline().switch_to(c.phase(1)), std::logic_error);
  });
}

/// The mean of all ranks' start values.
std::vector<double> mean_start(const Problem& problem) {
  std::vector<double> mean(problem.num_values());
  for (int rank = 0; rank < problem.num_ranks; ++rank) {
    const std::vector<double> x = start_of(problem, rank);
    for (std::size_t e = 0; e < x.size(); ++e) mean[e] += x[e] / problem.num_ranks;
  }
  return mean;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0.0;
  for (std::size_t e = 0; e < a.size(); ++e) most = std::max(most, std::abs(a[e] - b[e]));
  return most;
}

TEST(SwitchTo, KeepsTheMeanOfPushSum) {
  Problem problem;
  problem.num_ranks = 5;
  problem.lr = 0.0;
  const std::vector<double> start = mean_start(problem);
  const auto directed = std::make_shared<const IrregularDigraph>(5);
  problem.topology = directed;
  const std::shared_ptr<const Topology> ring = make_topology("ring", {.size = 5, .node_size = 5});
  for (const int num_steps : {0, 1, 2, 5, 200}) {
    SCOPED_TRACE(num_steps);
    run_ranks(5, [&](Communicator& communicator, const World& world) {
      ToyModel model = model_of(problem, communicator);
      const auto train_all = [&](int count) {
        for (int step = 0; step < count; ++step) train_step(problem, model, world.rank, step);
        model.pipeline().drain();
      };
      train_all(num_steps);
      const auto plain_mean = [&] {
        std::vector<double> mean = sum_over_ranks(communicator, model.values());
        for (double& x : mean) x /= 5.0;
        return mean;
      };
      if (num_steps == 2) {
        EXPECT_GT(distance(plain_mean(), start), 1e-3) << "weights matter";
      }
      model.pipeline().switch_to({.topology = ring, .average = true});
      EXPECT_LE(distance(model.values(), start), 1e-12);
      // Ranks that differ again, in the directed topology that begins with weights of 1.
      model.write(start_of(problem, world.rank));
      model.pipeline().switch_to({.topology = directed});
      train_all(200);
      EXPECT_LE(distance(model.values(), start), 1e-12);
      // Without an average the models stay as they are: the mean, and not times their weights.
      const std::vector<double> before = model.values();
      model.pipeline().switch_to({.topology = ring});
      EXPECT_EQ(model.values(), before);
    });
  }
}

/// Counts bytes that are in use.
class CountingStream : public InlineStream {
 public:
  Buffer allocate(std::int64_t numel, DType dtype) override { return counted(numel, dtype); }
  Buffer allocate_host(std::int64_t numel, DType dtype) override { return counted(numel, dtype); }
  [[nodiscard]] std::int64_t live() const { return *live_; }

 private:
  Buffer counted(std::int64_t numel, DType dtype) {
    const Buffer buffer(numel, dtype);
    const std::int64_t bytes = buffer.block().bytes();
    *live_ += bytes;
    return {std::shared_ptr<void>(buffer.owner().get(), [owner = buffer.owner(), live = live_,
                                                         bytes](void*) { *live -= bytes; }),
            buffer.block()};
  }
  // Operations on other threads may hold buffers a little longer.
  std::shared_ptr<std::atomic<std::int64_t>> live_ = std::make_shared<std::atomic<std::int64_t>>(0);
};

/// Counts sub-communicators, and shared memory that is in use.
class CountingCommunicator : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::unique_ptr<Communicator> split(int color) override {
    ++num_splits;
    return ForwardingCommunicator::split(color);
  }
  std::vector<Buffer> allocate(std::int64_t bytes) override {
    std::vector<Buffer> parts = ForwardingCommunicator::allocate(bytes);
    for (const Buffer& part : parts) shared.emplace_back(part.owner());
    return parts;
  }
  [[nodiscard]] std::int64_t num_shared() const {
    return std::ranges::count_if(shared, [](const auto& part) { return !part.expired(); });
  }
  int num_splits = 0;
  std::vector<std::weak_ptr<void>> shared;
};

TEST(SwitchTo, RefusesWhatDoesNotSuitTheOptimizerOrTheRanksAndGoesOn) {
  Case c = case_of({{}, {.options = "share_moments: 4"}});
  c.optimizer = "sgd";
  const Case whole = [&c] {
    Case same = c;
    same.phases = {{}};
    same.phase_steps = 6;
    return same;
  }();
  Values values(static_cast<std::size_t>(c.problem.num_ranks));
  // Topologies of a user's own: for five ranks, and with a round that leaves ranks out.
  const auto large = std::make_shared<const IrregularDigraph>(5);
  const auto torn = std::make_shared<const FunctionTopology>([](std::int64_t k) {
    return complete_round({averaging_edge({0, 1})}, k == 3 ? 2 : 4);
  });
  run_ranks(c.problem.num_ranks, [&](Communicator& communicator, const World& world) {
    FakeNcclHub hub;
    TestDevice device(Where::kHost, communicator, hub);
    const Model model = make_model(c, device, 0);
    for (int step = 0; step < 6; ++step) {
      if (step == 3) {
        EXPECT_TRUE(contains(config_error(*model, c.phase(1)), "keeps no second moments"));
        EXPECT_TRUE(contains(config_error(*model, {.topology = large}), "in round 0: "));
        EXPECT_TRUE(contains(config_error(*model, {.topology = torn}),
                             "in round 3: Rank 2 stands in no edge"));
      }
      train_step(c.problem, *model, world.rank, step);
    }
    model->pipeline().drain();
    values[static_cast<std::size_t>(world.rank)].push_back(model->values());
  });
  EXPECT_EQ(values, train(whole, How::kSwitched));
}

TEST(Pipelines, FindTheSubCommunicatorsOfThoseBefore) {
  // Groups of ranks and of nodes, rounds of two levels, nodes with lanes of their own, and sums
  // under a codec.
  const std::vector<Phase> kinds = {{.topology = "alternating-exp-ring"},
                                    {.topology = "hierarchical"},
                                    {.algorithm = "node_gossip", .topology = "hierarchical"},
                                    {.algorithm = "allreduce"}};
  Case c = case_of({});
  c.problem.num_ranks = 8;
  run_ranks(8, [&](Communicator& communicator, const World& world) {
    CountingCommunicator counting(communicator);
    int num_splits = 0;
    for (int turn = 0; turn < 3; ++turn) {
      for (const Phase& kind : kinds) {
        Case own = c;
        own.phases = {kind};
        if (kind.algorithm == "allreduce") own.problem.codec = "bf16";
        ToyModel model = model_of(own.problem, counting, own.config(0, nullptr));
        for (int step = 0; step < 3; ++step) train_step(own.problem, model, world.rank, step);
        model.pipeline().drain();
      }
      if (turn == 0) num_splits = counting.num_splits;
      EXPECT_GE(num_splits, 6);
      EXPECT_EQ(counting.num_splits, num_splits) << "turn " << turn;
    }
  });
}

TEST(SwitchTo, AHundredTimesLeavesNothingBehind) {
  // Groups of nodes and of ranks, sums, encoded sums, slots.
  Case c = case_of({{.topology = "hierarchical"},
                    {.algorithm = "allreduce"},
                    {.topology = "alternating-exp-ring"},
                    {.algorithm = "choco", .options = "fraction: 0.3, consensus_step: 0.6"},
                    {.algorithm = "outer", .options = "every: 2"},
                    {.algorithm = "node_gossip"},
                    {.algorithm = "gradient_tracking", .topology = "base-k"}});
  c.problem.num_ranks = 8;
  for (const char* codec : {"fp32", "int8"}) {
    SCOPED_TRACE(codec);
    c.problem.codec = codec;
    if (c.problem.codec == "int8") {
      c.phases = {{.topology = "hierarchical"}, {.algorithm = "allreduce"}, {.topology = "base-k"}};
    }
    const std::size_t num_phases = c.phases.size();
    run_ranks(8, [&](Communicator& communicator, const World& world) {
      CountingCommunicator counting(communicator);
      CountingStream stream;
      ToyModel model = model_of(c.problem, counting, c.config(0, &stream));
      std::vector<std::int64_t> live(num_phases);
      std::vector<std::int64_t> shared(num_phases);
      int num_splits = 0;
      // Under sanitizers the phases come three times.
      for (std::size_t number = 0; number < (kSanitized ? 24U : 100U); ++number) {
        const std::size_t phase = number % num_phases;
        if (number > 0) model.pipeline().switch_to(c.phase(phase));
        for (int step = 0; step < 2; ++step) {
          train_step(c.problem, model, world.rank, 2 * static_cast<int>(number) + step);
        }
        model.pipeline().drain();
        // All ranks have let go of each other's memory.
        counting.barrier();
        if (number >= 2 * num_phases) {
          EXPECT_LE(stream.live(), live[phase]);
          EXPECT_EQ(counting.num_splits, num_splits);
          EXPECT_EQ(counting.num_shared(), shared[phase]);
        }
        live[phase] = stream.live();
        shared[phase] = counting.num_shared();
        num_splits = counting.num_splits;
      }
      EXPECT_GT(num_splits, 0);
    });
  }
}

}  // namespace
}  // namespace gossamer::switch_test

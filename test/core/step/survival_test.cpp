// Tests of Pipeline::detach() and resume(): training goes on when ranks die.

#include "test/base/thrown.hpp"
#include "test/core/algorithms/algorithm_variants.hpp"
#include "test/core/problem.hpp"
#include "test/core/step/saved_state.hpp"
#include "test/core/step/survivor_ranks.hpp"
#include "test/support/sanitized.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/session.hpp"
#include "core/bucket/model_average.hpp"
#include "core/step/algorithm_switch.hpp"
#include "topology/registry.hpp"

namespace gossamer::survival_test {
namespace {

constexpr int kSize = 4;
constexpr int kVictim = 1;
constexpr int kDeath = 3;
constexpr int kMore = 6;

struct Survivor : AlgorithmVariant {
  const char* codec = "fp32";
  Recipe recipe = Recipe::kOwn;

  [[nodiscard]] std::string text() const {
    return concat(first, " {", second, "}, ", codec, recipe == Recipe::kOwn ? "" : ", recipe");
  }
};

std::vector<Survivor> survivors() {
  std::vector<Survivor> survivors;
  for (const AlgorithmVariant& variant : kSanitized ? richest_variants() : algorithm_variants()) {
    const AlgorithmChoice choice(std::string_view(variant.first), Options::parse(variant.second));
    if (!choice.entry().survives || contains(choice.text(), "delay: 1")) continue;
    survivors.push_back({variant});
  }
  survivors.push_back({{"gossip", "share_momentum: 2"}});
  survivors.push_back({{"outer", "every: 2, kind: noloco, share_momentum: 2"}});
  survivors.push_back({{"gossip", ""}, "int8"});
  survivors.push_back({{"allreduce", ""}, "int4"});
  survivors.push_back({{"outer", "every: 2, kind: noloco"}, "int8"});
  survivors.push_back({{"outer", "every: 2, kind: diloco, momentum: 0, lr: 1"}, "topk"});
  // A sample of gradients is under way when the rank dies.
  survivors.push_back({{"gossip", ""}, "fp32", Recipe::kAllReduce});
  return survivors;
}

std::shared_ptr<const Topology> topology_of(const std::string& algorithm, int size) {
  const bool is_static = AlgorithmChoice(algorithm).topologies() == TopologyKind::kStatic;
  return make_topology(is_static ? "static-ring" : "base-k", {.size = size, .node_size = size});
}

Problem problem_of(const Survivor& variant, int size) {
  Problem problem;
  problem.codec = variant.codec;
  problem.num_ranks = size;
  problem.algorithm = variant.first;
  problem.algorithm_options = variant.second;
  problem.topology = topology_of(variant.first, size);
  problem.gradients.recipe = variant.recipe;
  if (variant.recipe == Recipe::kAllReduce) problem.rule = {.type = "adamw", .eps = 1e-3};
  return problem;
}

/// values[rank], after a few steps with peers, without them, and with them again.
std::vector<std::vector<double>> values_after_a_while_alone(const Problem& problem, bool switches) {
  std::vector<std::vector<double>> values(static_cast<std::size_t>(problem.num_ranks));
  run_ranks(problem.num_ranks, [&](Communicator& communicator, const World& world) {
    ToyModel model = model_of(problem, communicator);
    Pipeline& pipeline = model.pipeline();
    int step = 0;
    const auto train = [&](int num_steps) {
      for (int i = 0; i < num_steps; ++i) train_step(problem, model, world.rank, step++);
    };
    train(5);
    pipeline.drain();
    if (switches) {
      pipeline.switch_to({.algorithm = "local"});
    } else {
      pipeline.detach();
    }
    train(3);
    if (switches) {
      pipeline.switch_to({.algorithm = config_of(problem).exchange.algorithm,
                          .topology = problem.topology,
                          .average = true});
    } else {
      pipeline.resume({.to = {.algorithm = config_of(problem).exchange.algorithm,
                              .topology = problem.topology,
                              .average = true}});
    }
    train(5);
    pipeline.drain();
    values[static_cast<std::size_t>(world.rank)] = model.values();
  });
  return values;
}

TEST(Detached, MakesTheStepsOfARankAlone) {
  for (const Survivor& variant : survivors()) {
    // Its ranks hold their steps.
    if (std::string_view(variant.first) == "allreduce") continue;
    // No run with a codec may switch to `local`.
    if (std::string_view(variant.codec) != "fp32") continue;
    for (const ClipMode clip : {ClipMode::kNone, ClipMode::kGlobal, ClipMode::kDelayedGlobal}) {
      SCOPED_TRACE(concat(variant.text(), ", clipping ", static_cast<int>(clip)));
      Problem problem = problem_of(variant, kSize);
      problem.gradients = {.clip_mode = clip, .clip_norm = 0.6};
      EXPECT_EQ(values_after_a_while_alone(problem, false),
                values_after_a_while_alone(problem, true));
    }
  }
}

/// The last rank joins after a few steps of the others, which were alone meanwhile.
TEST(Resume, GivesTheMeanOfTheOthersToOneThatJoins) {
  constexpr int kSteps = 5;
  for (const Survivor& variant : survivors()) {
    SCOPED_TRACE(variant.text());
    Problem problem = problem_of(variant, kSize);
    problem.rule = {.type = "adamw"};
    // Adam shares its first moments with the second ones alone.
    if (contains(variant.second, "share_momentum")) {
      problem.algorithm_options += ", share_moments: 2";
    }
    problem.gradients = {.clip_mode = ClipMode::kDelayedGlobal, .clip_norm = 0.6};
    std::vector<SavedState> before(kSize);
    std::vector<SavedState> after(kSize);
    run_ranks(kSize, [&](Communicator& communicator, const World& world) {
      const bool joins = world.rank == kSize - 1;
      Pipeline::Config config = config_of(problem);
      config.begins_detached = true;
      ToyModel model = model_of(problem, communicator, std::move(config));
      for (int step = 0; !joins && step < kSteps; ++step) {
        train_step(problem, model, world.rank, step);
      }
      const auto place = static_cast<std::size_t>(world.rank);
      Pipeline::Resume wanted{
          .to = {.algorithm = config_of(problem).exchange.algorithm, .topology = problem.topology}};
      wanted.joins = joins;
      const std::vector<double> own = model.values();
      before[place].reals["x0"] = own.front();
      before[place].reals["xn"] = own.back();
      model.pipeline().resume(wanted);
      const std::vector<double> now = model.values();
      after[place] = saved(model.pipeline());
      after[place].reals["x0"] = now.front();
      after[place].reals["xn"] = now.back();
      EXPECT_EQ(model.pipeline().progress().num_steps, kSteps);
      train_step(problem, model, world.rank, kSteps);
      model.pipeline().drain();
    });
    for (const char* place : {"x0", "xn"}) {
      double mean = 0.0;
      for (std::size_t rank = 0; rank + 1 < kSize; ++rank) {
        mean += before[rank].reals[place] / (kSize - 1);
      }
      for (const SavedState& state : after) EXPECT_NEAR(state.reals.at(place), mean, 1e-12);
    }
    for (const SavedState& state : after) {
      EXPECT_EQ(state.blocks, after.front().blocks);
      EXPECT_EQ(state.reals, after.front().reals);
      EXPECT_EQ(state.integers, after.front().integers);
    }
  }
}

TEST(Resume, NeedsARankThatHasTheModel) {
  const Problem problem = problem_of({{"gossip", ""}}, 2);
  run_ranks(2, [&](Communicator& communicator, const World&) {
    Pipeline::Config config = config_of(problem);
    config.begins_detached = true;
    ToyModel model = model_of(problem, communicator, std::move(config));
    const std::string text = what_of<CommError>([&] {
      model.pipeline().resume(
          {.to = {.algorithm = "gossip", .topology = problem.topology}, .joins = true});
    });
    EXPECT_NE(text.find("no rank that is left has the model"), std::string::npos) << text;
  });
}

TEST(Detached, HasNothingToWaitFor) {
  const Problem problem = problem_of({{"gossip", ""}}, 2);
  run_ranks(2, [&](Communicator& communicator, const World&) {
    ToyModel model = model_of(problem, communicator);
    model.pipeline().detach();
    const std::string text = what_of<PeerLost>([&] { model.pipeline().drain(); });
    EXPECT_NE(text.find("have not gone on"), std::string::npos) << text;
  });
}

TEST(Survival, IsNotAskedOfAlgorithmsThatCannot) {
  const std::string why = AlgorithmChoice("relay").why_not({.is_elastic = true});
  EXPECT_NE(why.find("cannot go on without a rank that dies"), std::string::npos) << why;
  EXPECT_NE(why.find("gossip"), std::string::npos) << why;
  const std::string delays =
      AlgorithmChoice("allreduce", Options::parse("delay: 1")).why_not({.is_elastic = true});
  EXPECT_NE(delays.find("take delay 0"), std::string::npos) << delays;
  EXPECT_EQ(AlgorithmChoice("allreduce").why_not({.is_elastic = true}), "");
  EXPECT_EQ(AlgorithmChoice("outer").why_not({.is_elastic = true}), "");
}

/// What the ranks that are left have when they go on, and kMore steps later; by rank.
struct Survival {
  std::vector<SavedState> states = std::vector<SavedState>(kSize - 1);
  std::vector<std::vector<double>> values = std::vector<std::vector<double>>(kSize - 1);
  /// The distance of each from their mean when they go on.
  std::vector<double> distances = std::vector<double>(kSize - 1);
  std::int64_t step = 0;
};

/// When the victim dies.
enum class Death { kBetweenSteps, kBetweenGradients, kAfterGradients };

void make_last_step(const Problem& problem, ToyModel& model, Death death) {
  const std::vector<double> gradient(problem.num_values(), 1.0);
  const std::int64_t count = model.num_parameters();
  const std::int64_t num_offered = death == Death::kBetweenSteps       ? 0
                                   : death == Death::kBetweenGradients ? count / 2
                                                                       : count;
  for (std::int64_t i = 0; i < num_offered; ++i) model.offer(i, gradient);
}

/// Trains until a peer is lost, goes on with the others, and trains on.
void live(const Survivor& variant, Death death, Session& session, TestDevice& device,
          Survival& survival) {
  Communicator& communicator = device.communicator();
  Problem problem = problem_of(variant, kSize);
  ToyModel model = model_on(problem, device);
  Pipeline& pipeline = model.pipeline();
  // The victim shall not die while others make their pipelines, for which they need it.
  static_cast<void>(what_of<PeerLost>([&] { communicator.barrier(); }));
  int rank = session.world().rank;
  int step = 0;
  const auto is_whole = [&] { return what_of<PeerLost>([&] { communicator.check(); }).empty(); };
  while (is_whole()) {
    if (rank == kVictim && step == kDeath) return make_last_step(problem, model, death);
    train_step(problem, model, rank, step++);
    // One that exchanges rarely shall not be far ahead.
    if (step > kDeath + 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  pipeline.detach();
  const Membership membership = communicator.elastic()->reconfigure(step);
  while (step < membership.step) {
    pipeline.catch_up(membership.step);
    train_step(problem, model, rank, step++);
  }
  rank = membership.world.rank;
  pipeline.resume({.to = {.algorithm = config_of(problem).exchange.algorithm,
                          .topology = topology_of(variant.first, membership.world.size),
                          .average = true}});
  const auto place = static_cast<std::size_t>(rank);
  // Before saving, because means of equal numbers are rounded.
  survival.distances[place] =
      ModelAverage(communicator, model.stream(), pipeline.memory()).distance();
  survival.states[place] = saved(pipeline);
  for (int i = 0; i < kMore; ++i) train_step(problem, model, rank, step + i);
  pipeline.drain();
  survival.values[place] = model.values();
  if (rank == 0) survival.step = step;
  communicator.barrier();
  communicator.close();
  session.close();
}

Survival survive(const std::string& kind, const Survivor& variant, Death death) {
  Survival survival;
  run_survivors(kind, kSize, [&](Session& session, const MakeDevice& make_device) {
    TestDevice device = make_device(session.communicator());
    live(variant, death, session, device, survival);
  });
  return survival;
}

/// A run of fewer ranks that begins with the state in which the others have gone on.
std::vector<std::vector<double>> begin_anew(const std::string& kind, const Survivor& variant,
                                            const Survival& survival) {
  std::vector<std::vector<double>> values(kSize - 1);
  const Problem problem = problem_of(variant, kSize - 1);
  run_survivors(
      kind, kSize - 1,
      [&](Session& session, const MakeDevice& make_device) {
        const int rank = session.world().rank;
        const auto place = static_cast<std::size_t>(rank);
        {
          TestDevice device = make_device(session.communicator());
          ToyModel model = model_on(problem, device);
          load(model.pipeline(), survival.states[place]);
          for (int i = 0; i < kMore; ++i) {
            train_step(problem, model, rank, static_cast<int>(survival.step) + i);
          }
          model.pipeline().drain();
          values[place] = model.values();
          device.communicator().close();
        }
        session.close();
      },
      /*survives=*/false);
  return values;
}

class Survivors : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Of, Survivors, testing::ValuesIn(kSurvivorRuns), own_name);

/// Then the ranks do not come to their first exchange together.
TEST_P(Survivors, MeetAfterRoundsThatOneOfThemSitsOut) {
  Problem problem = problem_of({{"gossip", ""}}, 3);
  problem.topology = make_topology("ring", {.size = 3, .node_size = 3});
  const std::vector<std::string> all = {"rank 0", "rank 1", "rank 2"};
  run_survivors(GetParam(), 3, [&](Session& session, const MakeDevice& make_device) {
    TestDevice device = make_device(session.communicator());
    Communicator& communicator = device.communicator();
    ToyModel model = model_on(problem, device);
    const int rank = communicator.rank();
    for (int step = 0; step < 6; ++step) {
      train_step(problem, model, rank, step);
      EXPECT_EQ(communicator.all_gather(concat("rank ", rank)), all);
    }
    model.pipeline().drain();
    communicator.barrier();
    communicator.close();
    session.close();
  });
}

TEST_P(Survivors, GoOnLikeAFreshRunOfFewerRanks) {
  for (const Survivor& variant : survivors()) {
    // They exchange nothing, so nobody waits for the others.
    if (std::string_view(variant.first) == "local") continue;
    for (const Death death :
         {Death::kBetweenSteps, Death::kBetweenGradients, Death::kAfterGradients}) {
      // The same code runs, and the same threads meet, at other places of a step.
      if (kSanitized && death != Death::kBetweenGradients) continue;
      SCOPED_TRACE(concat(variant.text(), ", death ", static_cast<int>(death)));
      const Survival survival = survive(GetParam(), variant, death);
      for (const auto& values : survival.values) EXPECT_FALSE(values.empty());
      for (const double distance : survival.distances) EXPECT_LT(distance, 1e-12);
      EXPECT_EQ(survival.values, begin_anew(GetParam(), variant, survival));
    }
  }
}

}  // namespace
}  // namespace gossamer::survival_test

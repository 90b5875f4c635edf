// The plan's bytes of every algorithm against what ranks that are threads really send.

#include "apps/lab/plan/exchange_schedule.hpp"

#include "test/apps/lab/plan/predictions.hpp"
#include "test/base/thrown.hpp"
#include "test/core/algorithms/algorithm_variants.hpp"
#include "test/core/problem.hpp"

#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "apps/lab/plan/iteration_model.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/bucket/model_average.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

// The elements of the larger of two buckets. It needs no padding.
constexpr std::int64_t kNumel = 256;

struct Planned {
  Problem problem;
  AlgorithmChoice choice;
  std::unique_ptr<Optimizer> optimizer;

  [[nodiscard]] ExchangeSchedule schedule() const {
    return ExchangeSchedule({.algorithm = choice,
                             .optimizer = *optimizer,
                             .world_size = problem.num_ranks,
                             .node_size = problem.topology->round(0).node_size,
                             .codec = find_codec(problem.codec),
                             .bucket_numel = problem.sizes});
  }
};

Planned planned(const std::string& algorithm, const std::string& options,
                const std::string& topology, int num_ranks, int node_size,
                std::int64_t factor = 1) {
  Problem problem{.num_ranks = num_ranks,
                  .node_size = node_size,
                  .algorithm = algorithm,
                  .algorithm_options = options,
                  .topology = make_topology(topology, {.size = num_ranks, .node_size = node_size}),
                  .shares_memory = false,
                  .dtype = DType::kFloat32,
                  .sizes = {kNumel * factor, kNumel / 2 * factor},
                  .bucket_bytes = 1,
                  .same_start = true,
                  .shuffles = false};
  return {.problem = std::move(problem),
          .choice = {algorithm, Options::parse(options)},
          .optimizer = make_optimizer("sgd", Options::parse("momentum: 0.9"))};
}

/// The plan's bytes per rank and step.
double planned_bytes(const Planned& plan, const ExchangeSchedule& schedule,
                     std::int64_t num_steps) {
  StepModel model{.world = {.size = plan.problem.num_ranks, .node_size = plan.problem.node_size},
                  .links = assumed_links(),
                  .compute_s = 0.01,
                  .num_steps = num_steps,
                  .num_warmup = num_steps};
  for (const std::int64_t numel : plan.problem.sizes) {
    model.bucket_bytes.push_back(4.0 * static_cast<double>(numel));
  }
  return predict_schedule(model, schedule, plan.problem.topology.get(),
                          find_codec(plan.problem.codec))
      .bytes_sent;
}

/// Bytes per rank and step of real ranks, in `num_steps` steps after as many others.
double real_bytes(const Problem& problem, std::int64_t num_steps) {
  double bytes = 0.0;
  run_ranks(
      problem.num_ranks,
      [&](Communicator& communicator, const World& world) {
        ToyModel model = model_of(problem, communicator);
        double before = 0.0;
        for (int step = 0; step < 2 * num_steps; ++step) {
          if (step == num_steps) before = model.pipeline().metrics().bytes_sent;
          train_step(problem, model, world.rank, step);
        }
        const double sent = model.pipeline().metrics().bytes_sent - before;
        const double all = sum_over_ranks(communicator, {sent}).front();
        if (world.rank == 0) {
          bytes = all / static_cast<double>(num_steps) / communicator.size();
        }
      },
      problem.node_size);
  return bytes;
}

/// Steps that hold whole periods of the topology and of the algorithm.
std::int64_t whole_periods(const Problem& problem, const ExchangeSchedule& schedule) {
  return problem.topology->period().value_or(1) * schedule.period();
}

TEST(ExchangeSchedule, CountsTheBytesOfEveryAlgorithm) {
  for (const auto& [algorithm, options] : algorithm_variants()) {
    for (const auto& [topology, num_ranks, node_size] :
         {std::tuple("one-peer-exp", 4, 4), std::tuple("ring", 5, 5),
          std::tuple("hierarchical", 6, 2)}) {
      const bool has_nodes = AlgorithmChoice(algorithm).entry().topologies == TopologyKind::kNodes;
      if (has_nodes != (num_ranks == 6) && topology_for(algorithm, topology) != topology) continue;
      const Planned plan =
          planned(algorithm, options, topology_for(algorithm, topology), num_ranks, node_size);
      const ExchangeSchedule schedule = plan.schedule();
      const std::int64_t num_steps = whole_periods(plan.problem, schedule);
      EXPECT_NEAR(planned_bytes(plan, schedule, num_steps), real_bytes(plan.problem, num_steps),
                  1e-9)
          << algorithm << " {" << options << "} on " << plan.problem.topology->name() << " of "
          << num_ranks;
    }
  }
}

/// How many bytes per step and rank the plan leaves out, for buckets `factor` times as large.
double missing_bytes(const std::string& codec, const AlgorithmVariant& algorithm,
                     const std::string& topology, int num_ranks, int node_size,
                     std::int64_t factor) {
  Planned plan = planned(algorithm.first, algorithm.second, topology, num_ranks, node_size, factor);
  plan.problem.codec = codec;
  // Two windows of a grid. Those before them are plain.
  const std::int64_t num_steps = 16;
  return real_bytes(plan.problem, num_steps) - planned_bytes(plan, plan.schedule(), num_steps);
}

TEST(ExchangeSchedule, CountsEncodedBytes) {
  constexpr AlgorithmVariant kGossip{"gossip", ""};
  constexpr AlgorithmVariant kPairs{"outer", "every: 2, kind: noloco"};
  constexpr AlgorithmVariant kMoves{"outer", "every: 2, kind: diloco"};
  for (const char* const codec : {"bf16", "int8", "int4", "topk"}) {
    for (const auto& [algorithm, topology, num_ranks, node_size] :
         {std::tuple(kGossip, "one-peer-exp", 4, 4), std::tuple(kGossip, "complete", 3, 3),
          std::tuple(kGossip, "complete", 9, 9), std::tuple(kGossip, "hierarchical", 6, 2),
          std::tuple(AlgorithmVariant{"gradient_tracking", ""}, "ring", 4, 4),
          std::tuple(AlgorithmVariant{"allreduce", ""}, "ring", 2, 2),
          std::tuple(kPairs, "one-peer-exp", 4, 4), std::tuple(kMoves, "ring", 4, 4)}) {
      if (find_codec(codec)->is_sparse() && algorithm != kMoves) continue;
      // The pairs move apart faster than a grid of 7 steps allows, and send some plain blocks.
      if (algorithm == kPairs && codec == std::string("int4")) continue;
      SCOPED_TRACE(concat(codec, ", ", algorithm.first, " {", algorithm.second, "} on ", topology,
                          " of ", num_ranks));
      const double missing = missing_bytes(codec, algorithm, topology, num_ranks, node_size, 1);
      // Votes do not grow with the buckets.
      EXPECT_NEAR(missing_bytes(codec, algorithm, topology, num_ranks, node_size, 4), missing,
                  1e-9);
      if (!find_codec(codec)->needs_grid() || algorithm == kMoves) {
        EXPECT_NEAR(missing, 0.0, 1e-9);
      }
    }
  }
}

TEST(ExchangeSchedule, IsThatOfGossipAndAllReduce) {
  Planned plan = planned("gossip", "", "one-peer-exp", 8, 2);
  const StepModel model{.world = {.size = 8, .node_size = 2},
                        .links = assumed_links(),
                        .compute_s = 0.001,
                        .bucket_bytes = {1024.0, 512.0}};
  // An all-reduce also sends a number for each parameter.
  const auto expect_same = [](const StepPrediction& a, const StepPrediction& b, double tolerance) {
    EXPECT_NEAR(a.step_s, b.step_s, tolerance * b.step_s);
    EXPECT_NEAR(a.wait_s, b.wait_s, tolerance * b.wait_s);
    EXPECT_NEAR(a.bytes_sent, b.bytes_sent, tolerance * b.bytes_sent);
  };
  EXPECT_TRUE(plan.schedule().only_mixes());
  EXPECT_FALSE(plan.schedule().waits_in_step());
  expect_same(predict_schedule(model, plan.schedule(), plan.problem.topology.get(), nullptr),
              predict_gossip(model, *plan.problem.topology), 0.0);
  plan = planned("allreduce", "", "one-peer-exp", 8, 2);
  EXPECT_TRUE(plan.schedule().waits_in_step());
  expect_same(predict_schedule(model, plan.schedule(), nullptr, nullptr), predict_all_reduce(model),
              0.01);
}

TEST(ExchangeSchedule, DoesNotDependOnTheNumberOfBuckets) {
  const Codec* const codec = find_codec("int8");
  const auto optimizer = make_optimizer("sgd");
  for (const auto& [algorithm, used] :
       {std::pair("allreduce", codec), std::pair("relay", static_cast<const Codec*>(nullptr)),
        std::pair("choco", static_cast<const Codec*>(nullptr))}) {
    const auto share_of = [&](std::size_t num_buckets) {
      const AlgorithmChoice choice(algorithm);
      const ExchangeSchedule schedule(
          {.algorithm = choice,
           .optimizer = *optimizer,
           .world_size = 8,
           .codec = used,
           .bucket_numel = std::vector<std::int64_t>(num_buckets, std::int64_t{6} << 20)});
      return schedule.at(0, 0).front().group_share;
    };
    EXPECT_NEAR(share_of(64), share_of(1), 1e-3 * share_of(1)) << algorithm;
  }
}

TEST(ExchangeSchedule, HasThePeriodThatTheAlgorithmStates) {
  const auto period_of = [](const char* algorithm, const char* options) {
    return planned(algorithm, options, "ring", 4, 4).schedule().period();
  };
  EXPECT_EQ(period_of("gossip", ""), 1);
  EXPECT_EQ(period_of("gossip", "share_momentum: 6"), 6);
  EXPECT_EQ(period_of("allreduce", "delay: 1"), 1);
  EXPECT_EQ(period_of("relay", ""), 1);
  EXPECT_EQ(period_of("late_average", "every: 5"), 5);
  EXPECT_EQ(period_of("outer", "every: 1025"), 1025);
  EXPECT_EQ(period_of("outer", "every: 6, streaming: true, late: 3"), 6);
  EXPECT_EQ(period_of("outer", "every: 4, share_momentum: 12"), 12);
}

TEST(ExchangeSchedule, RefusesAPeriodThatIsWrong) {
  AlgorithmEntry entry = AlgorithmChoice("outer").entry();
  entry.options = {};
  entry.read = [](const Options&) -> AlgorithmFactory {
    return [](const AlgorithmSetup& setup) {
      return AlgorithmChoice("outer", Options::parse("every: 5")).make(setup);
    };
  };
  Planned plan = planned("outer", "every: 5", "ring", 4, 4);
  plan.choice = AlgorithmChoice(entry);
  EXPECT_TRUE(contains(what_of<ConfigError>([&] { static_cast<void>(plan.schedule()); }),
                       "does not repeat after 1 steps"));
}

TEST(ExchangeSchedule, BeginsAfterEveryWarmup) {
  const ExchangeSchedule late =
      planned("late_average", "every: 6, warmup: 1000000", "ring", 4, 4).schedule();
  EXPECT_EQ(late.period(), 6);
  EXPECT_FALSE(late.waits_in_step());
  std::int64_t num_exchanges = 0;
  for (std::int64_t step = 0; step < 12; ++step) num_exchanges += std::ssize(late.at(step, 0));
  EXPECT_EQ(num_exchanges, 2);
  EXPECT_EQ(planned("outer", "every: 7, streaming: true", "ring", 4, 4).schedule().period(), 7);
}

TEST(ExchangeSchedule, SaysHowManyStepsLaterRanksWait) {
  const auto late_of = [](const char* algorithm, const std::string& options) {
    const ExchangeSchedule schedule = planned(algorithm, options, "ring", 4, 4).schedule();
    std::set<std::int64_t> found;
    for (std::int64_t step = 0; step < 2 * schedule.period(); ++step) {
      for (const PlannedExchange& exchange : schedule.at(step, 0)) found.insert(exchange.late);
    }
    return found;
  };
  using Lates = std::set<std::int64_t>;
  EXPECT_EQ(late_of("allreduce", ""), Lates{0});
  EXPECT_EQ(late_of("allreduce", "delay: 1"), Lates{1});
  EXPECT_EQ(late_of("gossip", ""), Lates{1});
  EXPECT_EQ(late_of("gossip", "overlap: false"), Lates{0});
  EXPECT_EQ(late_of("outer", "every: 6"), Lates{1});
  EXPECT_EQ(late_of("outer", "every: 6, overlap: false"), Lates{0});
  for (const char* const rounds : {"all", "topology"}) {
    const std::string options = concat("kind: noloco, every: 6, rounds: ", rounds);
    EXPECT_EQ(late_of("outer", concat(options, ", late: 4")), Lates{4});
    EXPECT_EQ(late_of("outer", concat(options, ", late: 6, streaming: true")), Lates{6});
  }
  EXPECT_EQ(late_of("late_average", "every: 5, late: 3"), Lates{3});
}

TEST(ExchangeSchedule, RefusesWhatItCannotFollow) {
  EXPECT_THROW(static_cast<void>(planned("async_gossip", "", "static-exp", 4, 4).schedule()),
               ConfigError);
  for (const char* const algorithm : {"outer", "late_average"}) {
    EXPECT_THROW(static_cast<void>(planned(algorithm, "every: 70000", "ring", 4, 4).schedule()),
                 ConfigError);
  }
}

}  // namespace
}  // namespace gossamer::apps

// The plan: what is in it, what it advises, and that its configurations can be used.

#include "apps/lab/plan/plan.hpp"

#include "test/base/thrown.hpp"
#include "test/support/long_runs.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "apps/lab/plan/ways.hpp"
#include "base/error.hpp"
#include "base/options.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

PlanOptions options_for(int world_size, int node_size) {
  PlanOptions options;
  options.model = {.world = {.size = world_size, .node_size = node_size},
                   .links = assumed_links(),
                   .compute_s = 0.05,
                   .bucket_bytes = planned_buckets(2e8, 2.5e7, world_size)};
  return options;
}

/// Ranks on hosts of their own, with a model of 40 MB and steps of 0.1 s.
PlanOptions far_options(int world_size, double mbit, double latency_s = 1e-3) {
  PlanOptions options;
  options.model = {
      .world = {.size = world_size},
      .links = {.between = LinkSpeed{.latency_s = latency_s, .bandwidth = mbit * 1e6 / 8.0}},
      .compute_s = 0.1,
      .bucket_bytes = planned_buckets(40e6, 1e7, world_size)};
  return options;
}

/// The plan of such a cluster. A plan takes a second, and several tests look at the same.
const Plan& far_plan(int world_size, double mbit) {
  static std::map<std::pair<int, double>, Plan> known;
  const auto [found, is_new] = known.try_emplace({world_size, mbit});
  if (is_new) found->second = make_plan(far_options(world_size, mbit));
  return found->second;
}

const PlanRow& row_of(const Plan& plan, const std::string& label) {
  const auto found =
      std::ranges::find_if(plan.rows, [&](const PlanRow& row) { return row.label() == label; });
  if (found == plan.rows.end()) throw std::logic_error(label + " is not in the plan");
  return *found;
}

/// Reads a row's configuration as training does.
void read_as_training_does(const PlanRow& row, World world) {
  const Options root(parse_yaml(row.yaml, "plan"));
  const AlgorithmChoice algorithm = read_algorithm(root);
  const Options comm = root.section("comm");
  static_cast<void>(
      find_codec(comm.read(TextOption{.name = "codec", .rule = {.fallback = "fp32"}})));
  world.node_size = static_cast<int>(comm.read(
      IntegerOption{.name = "local_size", .rule = {.fallback = world.node_size, .min = 1}}));
  static_cast<void>(root.section("buckets").read(
      IntegerOption{.name = "size_mb", .rule = {.fallback = 25, .min = 1}}));
  static_cast<void>(read_recipe(root.section("train")));
  if (algorithm.needs_topology()) {
    static_cast<void>(read_topology(root.named_section("topology"), world));
  }
  root.reject_unknown();
}

/// Ways that exchange every thousand steps.
class PlanOfSlowLinks : public LongRuns {};

TEST(Plan, HasGossipOnEveryTopologyThatFitsOnce) {
  for (const auto& [size, local] : {std::pair(8, 2), std::pair(6, 3), std::pair(2, 1)}) {
    const PlanOptions options = options_for(size, local);
    const Plan plan = make_plan(options);
    std::set<std::string> labels;
    std::set<std::string> topologies;
    for (const PlanRow& row : plan.rows) {
      EXPECT_TRUE(labels.insert(row.label()).second) << row.label();
      EXPECT_GT(row.step.step_s, 0.0) << row.label();
      if (row.exchange == "gossip" && row.codec == "fp32") topologies.insert(row.topology);
    }
    for (const TopologyEntry& entry : topology_table()) {
      EXPECT_EQ(topologies.contains(std::string(entry.name)),
                entry.fits(options.model.world) && !entry.needs_options)
          << entry.name;
    }
  }
}

TEST(Plan, HasAllWays) {
  const Plan& plan = far_plan(4, 100);
  for (const Way& way : way_table()) {
    EXPECT_TRUE(std::ranges::any_of(plan.rows,
                                    [&](const PlanRow& row) {
                                      return row.exchange == way.name && row.codec == way.codec &&
                                             (row.late > 1) == way.travels;
                                    }))
        << way.name << " " << way.codec << " " << way.travels;
  }
}

TEST(Plan, TakesPlainAllReduceWhereLinksAreFast) {
  for (const int size : {2, 4, 6}) {
    const Plan plan = make_plan(far_options(size, 1e6, 1e-6));
    EXPECT_EQ(plan.rows.front().label(), "all-reduce, fp32");
    EXPECT_EQ(plan.rows.front().yaml, "algorithm: allreduce\n");
    EXPECT_EQ(plan.rows.front().expected_gap, 0.0);
    EXPECT_TRUE(contains(plan.recommendation, "as much in a step as all-reduce in float32"))
        << plan.recommendation;
  }
}

TEST(Plan, GivesOneAdviceForFourFarHosts) {
  PlanOptions options;
  options.model = {.world = {.size = 4},
                   .links = {.between = LinkSpeed{.latency_s = 50e-6, .bandwidth = 0.1e9 / 8.0}},
                   .compute_s = 0.3,
                   .bucket_bytes = planned_buckets(200e6, 25.0 * 1024 * 1024, 4)};
  const Plan plan = make_plan(options);
  const PlanRow& best = plan.rows.front();
  EXPECT_LE(best.step.step_s, 1.1 * 0.3);
  EXPECT_EQ(best.codec, "topk");
  EXPECT_EQ(best.exchange, "outer of all");
  // 200 MB round a ring of four: 1.5 times as many bytes at 12.5 MB/s.
  EXPECT_NEAR(row_of(plan, "all-reduce, fp32").step.step_s, 24.1, 0.2);
  EXPECT_TRUE(contains(plan.recommendation, concat("Take ", best.label(), ": a step takes ")));
  EXPECT_TRUE(contains(plan.recommendation, "above all-reduce's loss after as many steps"));
  EXPECT_TRUE(contains(plan.recommendation, "With all-reduce in float32 a step takes 24"));
}

TEST(Plan, TakesGossipWithPlainMessagesWhereTheyHideBehindAStep) {
  // A step computes for 0.1 s. Gossip needs 0.08 s for its 40 MB and all-reduce 1.5 times as long,
  // of which 0.067 s hide behind the backward pass. The codecs of all-reduce are left out.
  PlanOptions options = far_options(4, 40.0 * 8.0 / 0.08);
  options.codec = nullptr;
  options.is_plain = true;
  const Plan plan = make_plan(options);
  EXPECT_EQ(plan.rows.front().label(), "gossip on base-k, fp32");
  EXPECT_FALSE(row_of(plan, "all-reduce, fp32").fits);
}

TEST(Plan, GivesGossipWithoutOverlapTheRecipeOfItsMeasurements) {
  const PlanRow& row = row_of(far_plan(4, 1000), "gossip without overlap on one-peer-exp, fp32");
  EXPECT_TRUE(contains(row.yaml, "algorithm: {name: gossip, overlap: false}\n"));
  EXPECT_TRUE(contains(row.yaml, "train: {recipe: allreduce}\n"));
  EXPECT_EQ(row.expected_gap, 0.007);
}

TEST(Plan, CountsWhatDoesNotHideBehindTheNextStepOfGossipWithoutOverlap) {
  // 40 MB take 0.08 s, which hide behind 0.1 s of computing, or in part behind the backward pass.
  const Plan plan = make_plan(far_options(4, 40.0 * 8.0 / 0.08));
  const double with = row_of(plan, "gossip on one-peer-exp, fp32").step.step_s;
  const double without = row_of(plan, "gossip without overlap on one-peer-exp, fp32").step.step_s;
  EXPECT_NEAR(with, 0.1, 1e-3);
  EXPECT_GT(without, 0.11);
  EXPECT_LT(without, 0.18);
}

TEST(Plan, ExpectsNothingOfTopologiesThatWeHaveNotMeasured) {
  const Plan& plan = far_plan(4, 1000);
  EXPECT_TRUE(row_of(plan, "gossip on ring, fp32").expected_gap.has_value());
  EXPECT_FALSE(row_of(plan, "gossip on star, fp32").expected_gap.has_value());
  EXPECT_FALSE(row_of(plan, "gossip on local-sgd, fp32").expected_gap.has_value());
  // A ring of 40 ranks mixes slower than the one of 16 that we have measured.
  EXPECT_TRUE(is_measured_for_gossip("ring", RoundCount{.rounds = 89}));
  EXPECT_FALSE(is_measured_for_gossip("ring", RoundCount{.rounds = 350}));
  EXPECT_FALSE(is_measured_for_gossip("ring", std::nullopt));
}

TEST(Plan, OrdersRowsByTheExpectedLossAndThenByTheirSteps) {
  for (const double mbit : {1000.0, 100.0}) {
    const Plan& plan = far_plan(4, mbit);
    const auto kind_of = [](const PlanRow& row) {
      const int kind = !row.expected_gap ? 1 : row.helps() ? 0 : 2;
      return row.fits ? kind : 3 + kind;
    };
    EXPECT_TRUE(std::ranges::is_sorted(plan.rows, {}, kind_of));
    double last_gap = 0.0;
    for (const PlanRow& row : plan.rows) {
      if (kind_of(row) != 0) break;
      EXPECT_GE(*row.expected_gap, last_gap - 0.011) << row.label();
      last_gap = *row.expected_gap;
    }
  }
}

TEST(Plan, CountsTheRoundsOfTheSpectrum) {
  const Plan plan = make_plan(options_for(8, 2));
  const PlanRow& exp = row_of(plan, "gossip on one-peer-exp, fp32");
  ASSERT_TRUE(exp.rounds);
  EXPECT_EQ(exp.rounds->rounds, 3);
  EXPECT_EQ(row_of(plan, "gossip on complete, fp32").rounds->rounds, 1);
  EXPECT_EQ(row_of(plan, "all-reduce, fp32").rounds->rounds, 1);
  EXPECT_GT(row_of(plan, "gossip on ring, fp32").rounds->rounds, 3);
  EXPECT_LE(row_of(plan, "gossip on base-k, k: 3, fp32").rounds->rounds,
            row_of(plan, "gossip on base-k, fp32").rounds->rounds);
  EXPECT_FALSE(row_of(plan, "gossip on ring, int8").rounds.has_value());
}

TEST(Plan, HasEncodedGossipOnMeasuredTopologiesUnlessTheUserAsksForMore) {
  const auto has_star = [](const Plan& plan) {
    return std::ranges::any_of(
        plan.rows, [](const PlanRow& row) { return row.label() == "gossip on star, int8"; });
  };
  EXPECT_FALSE(has_star(far_plan(4, 100)));
  PlanOptions options = far_options(4, 100);
  options.algorithms = {"gossip"};
  EXPECT_TRUE(has_star(make_plan(options)));
}

TEST(Plan, GivesConfigurationsThatTrainingReads) {
  for (const PlanRow& row : far_plan(4, 100).rows) {
    EXPECT_NO_THROW(read_as_training_does(row, {.size = 4})) << row.yaml;
  }
  const PlanOptions options = options_for(6, 3);
  for (const PlanRow& row : make_plan(options).rows) {
    EXPECT_NO_THROW(read_as_training_does(row, options.model.world)) << row.yaml;
  }
}

TEST(Plan, HasOnlyTheAlgorithmsThatAreAskedFor) {
  PlanOptions options = options_for(8, 2);
  const Plan plain = make_plan(options);
  options.algorithms = {"gossip", {"late_average", Options::parse("every: 4")}, "relay"};
  const Plan plan = make_plan(options);
  const PlanRow& late = row_of(plan, "late_average {every: 4}, fp32, every 4 steps");
  EXPECT_EQ(late.yaml, "algorithm: {name: late_average, every: 4}\n");
  EXPECT_FALSE(late.rounds.has_value());
  EXPECT_FALSE(late.expected_gap.has_value());
  EXPECT_NEAR(late.step.bytes_sent, 2e8 * 2.0 * 7.0 / 8.0 / 4.0, 1.0);
  EXPECT_FALSE(row_of(plan, "relay on chain, fp32").rounds.has_value());
  for (const PlanRow& row : plan.rows) {
    EXPECT_TRUE(row.exchange == "gossip" || row.exchange == "gossip without overlap" ||
                row.exchange == "relay" || row.exchange == "late_average {every: 4}")
        << row.label();
  }
  for (const char* const label :
       {"gossip on ring, fp32", "gossip on hierarchical, leaders: complete, fp32"}) {
    EXPECT_EQ(row_of(plan, label).step.step_s, row_of(plain, label).step.step_s);
    EXPECT_EQ(row_of(plan, label).yaml, row_of(plain, label).yaml);
  }
}

TEST(Plan, ShowsEveryTopologyOfTheAlgorithmsThatAreAskedFor) {
  PlanOptions options = far_options(4, 1000);
  EXPECT_FALSE(contains(to_text(far_plan(4, 1000), options), " star "));
  options.algorithms = {"gossip"};
  EXPECT_TRUE(contains(to_text(make_plan(options), options), " star "));
}

TEST(Plan, HasOnlyTheCodecThatIsAskedFor) {
  PlanOptions options = options_for(8, 2);
  const double plain = row_of(make_plan(options), "gossip on one-peer-exp, fp32").step.bytes_sent;
  options.codec = find_codec("bf16");
  const Plan plan = make_plan(options);
  for (const PlanRow& row : plan.rows) EXPECT_EQ(row.codec, "bf16");
  const PlanRow& row = row_of(plan, "gossip on one-peer-exp, bf16");
  EXPECT_NEAR(row.step.bytes_sent, plain / 2.0, 1e-6 * plain);
  EXPECT_TRUE(contains(row.yaml, "comm: {codec: bf16}\n"));
  // It rounds less than int8, which lost nothing.
  EXPECT_TRUE(row.expected_gap.has_value());
  EXPECT_EQ(row_of(plan, "all-reduce, bf16").expected_gap, 0.0);
  options.algorithms = {"choco"};
  EXPECT_THROW(make_plan(options), ConfigError);
  options.codec = find_codec("int4");
  options.algorithms = {"gossip"};
  EXPECT_FALSE(make_plan(options).rows.front().expected_gap.has_value());
  options.codec = find_codec("topk");
  EXPECT_TRUE(contains(what_of<ConfigError>([&] { static_cast<void>(make_plan(options)); }),
                       "leaves out elements"));
  options.algorithms.clear();
  EXPECT_LT(make_plan(options).rows.front().step.bytes_sent, plain / 10.0);
}

TEST(Plan, AdvisesOnGpusWhatRunsThere) {
  PlanOptions options = far_options(4, 100);
  const std::string on_processors = to_json(make_plan(options)).dump();
  options.on_gpu = true;
  EXPECT_EQ(to_json(make_plan(options)).dump(), on_processors);
  options.algorithms = {"choco"};
  EXPECT_TRUE(contains(what_of<ConfigError>([&] { static_cast<void>(make_plan(options)); }),
                       "the algorithm choco works on processors only, because processors choose "
                       "the elements of its messages; on GPUs take gossip"));
}

TEST(Plan, RecommendsItsFirstRow) {
  const PlanOptions options = options_for(8, 2);
  const Plan plan = make_plan(options);
  EXPECT_TRUE(plan.recommendation.starts_with(concat("Take ", plan.rows.front().label(), ": ")))
      << plan.recommendation;
  EXPECT_TRUE(plan.recommendation.ends_with("."));
  const auto json = to_json(plan);
  EXPECT_EQ(json.at("yaml"), plan.rows.front().yaml);
  EXPECT_EQ(json.at("rows").size(), plan.rows.size());
  const std::string text = to_text(plan, options);
  EXPECT_TRUE(contains(text, plan.recommendation + "\n\n" + plan.rows.front().yaml));
}

TEST(Plan, GivesItsConfigurationAsADictionaryToo) {
  const nlohmann::json json = to_json(far_plan(4, 100));
  const auto expected = nlohmann::json::parse(
      R"({"algorithm": {"name": "outer", "kind": "diloco", "momentum": 0, "lr": 1, "every": 1},
          "comm": {"codec": "topk"}})");
  EXPECT_EQ(json.at("options"), expected) << json.at("options");
}

TEST(Plan, WarnsWhereAnExchangeTakesLongerThanTheTimeLimit) {
  EXPECT_TRUE(far_plan(4, 100).warnings.empty());
  PlanOptions options = far_options(4, 0.1);
  options.algorithms = {"allreduce"};
  options.is_plain = true;
  // 40 MB round a ring of four at 12.5 kB/s: 4800 s.
  const Plan plan = make_plan(options);
  ASSERT_EQ(plan.warnings.size(), 1U);
  EXPECT_TRUE(contains(plan.warnings.front(), "comm.timeout_s is 300 s")) << plan.warnings.front();
  EXPECT_TRUE(contains(plan.warnings.front(), "give comm.timeout_s: 9800"))
      << plan.warnings.front();
  EXPECT_TRUE(contains(to_text(plan, options), concat("Warning: ", plan.warnings.front())));
}

TEST(Plan, SaysThatOneRankExchangesNothing) {
  PlanOptions one = options_for(1, 1);
  one.model.links = {};
  EXPECT_TRUE(contains(make_plan(one).recommendation, "exchanges nothing"));
}

TEST(WidePlan, HasRowsForManyRanks) { EXPECT_GT(make_plan(options_for(96, 8)).rows.size(), 10U); }

TEST(Plan, FindsTheSmallestPeriodWithinTheBudget) {
  const Plan& plan = far_plan(4, 100);
  for (const PlanRow& row : plan.rows) {
    SCOPED_TRACE(row.label());
    EXPECT_EQ(row.fits, row.step.step_s <= 1.1 * plan.local_s);
    EXPECT_NEAR(row.efficiency, plan.local_s / row.step.step_s, 1e-12);
  }
  // 40 MB need 3.2 s at 100 Mbit/s, in int8 0.8 s. One step of 0.1 s hides as much of it. The other
  // 0.7 s are 10 % of 70 steps, and 128 is the next power of two.
  const PlanRow& pairs = row_of(plan, "outer in pairs on base-k, int8, every 128 steps");
  EXPECT_NEAR(pairs.exchange_s, 0.8, 0.05);
  EXPECT_NEAR(pairs.step.bytes_sent, 10e6 / 128.0, 1e4);
}

TEST(Plan, SumsSparseMovesInEveryStepThatHidesThem) {
  // A rank sends 40 MB / 146 to each of three others: 66 ms at 100 Mbit/s. A step has 100 ms.
  const PlanRow& row = far_plan(4, 100).rows.front();
  EXPECT_EQ(row.codec, "topk");
  EXPECT_TRUE(contains(row.yaml, "{name: outer, every: 1, ")) << row.yaml;
  EXPECT_NEAR(row.step.bytes_sent, 3.0 * 40e6 / 146.0, 1e4);
}

TEST_F(PlanOfSlowLinks, HasShorterPeriodsWhereAveragesTravel) {
  // 10 MB in int8 take 8 s at 10 Mbit/s. 64 steps of 0.1 s hide 6.4 s, and the rest is 6 % of 256
  // steps; without travelling the 8 s must be 10 % of the steps.
  const Plan& plan = far_plan(4, 10);
  std::map<std::int64_t, std::int64_t> every_of;
  for (const PlanRow& row : plan.rows) {
    if (row.exchange != "outer in pairs" || row.codec != "int8") continue;
    EXPECT_TRUE(row.fits);
    every_of[row.late] = row.every;
    EXPECT_EQ(row.allowed_s, static_cast<double>(row.late) * plan.local_s);
    EXPECT_EQ(contains(row.yaml, "late:"), row.late > 1);
  }
  EXPECT_EQ(every_of, (std::map<std::int64_t, std::int64_t>{{1, 1024}, {64, 256}}));
}

TEST(Plan, DoesNotTakeABacklogForSpeed) {
  // A step computes for 0.1 s, and gossip needs 0.135 s.
  const PlanRow row =
      row_of(make_plan(far_options(4, 40.0 * 8.0 / 0.135)), "gossip on base-k, fp32");
  EXPECT_NEAR(row.step.step_s, 0.136, 0.002);
  EXPECT_FALSE(row.fits);
}

TEST(Plan, NamesLargeBucketsForRareExchanges) {
  PlanOptions options = far_options(2, 1000);
  options.model.bucket_bytes = planned_buckets(800e6, 25e6, 2);
  for (const PlanRow& row : make_plan(options).rows) {
    EXPECT_EQ(contains(row.yaml, "buckets: {size_mb: 191}"), contains(row.exchange, "outer"))
        << row.yaml;
  }
}

TEST_F(PlanOfSlowLinks, SaysSoWhereExchangesAreTooRareToHelp) {
  const Plan& slow = far_plan(4, 1);
  EXPECT_TRUE(slow.rows.front().fits);
  EXPECT_FALSE(slow.rows.front().helps());
  EXPECT_TRUE(contains(slow.recommendation, "too slow for this model")) << slow.recommendation;
  EXPECT_TRUE(contains(to_text(slow, far_options(4, 1)), " as alone\n"));
  const Plan& fast = far_plan(4, 1000);
  EXPECT_TRUE(fast.rows.front().helps());
  EXPECT_FALSE(contains(fast.recommendation, "too slow"));
}

TEST(Plan, RefusesWhatCannotBe) {
  const auto refuses = [](const auto& change, const char* part) {
    PlanOptions options = options_for(8, 2);
    change(options);
    const std::string what = what_of<ConfigError>([&] { make_plan(options); });
    EXPECT_TRUE(contains(what, part)) << what;
  };
  refuses([](PlanOptions& options) { options.model.world.size = 0; }, "--world-size");
  refuses([](PlanOptions& options) { options.model.world.size = 4097; }, "1 to 4096");
  refuses([](PlanOptions& options) { options.model.world.node_size = 3; }, "--local-world-size");
  refuses([](PlanOptions& options) { options.model.links.between.reset(); }, "between nodes");
  EXPECT_THROW(planned_buckets(0.0, 1e6, 8), ConfigError);
}

}  // namespace
}  // namespace gossamer::apps

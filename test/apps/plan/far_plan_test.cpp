// The far plan: periods, whom and codecs for slow links.

#include "apps/plan/far_plan.hpp"

#include "test/base/thrown.hpp"
#include "test/long_runs.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "apps/plan/plan_request.hpp"
#include "base/error.hpp"
#include "base/options.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

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
const FarPlan& plan_of(int world_size, double mbit) {
  static std::map<std::pair<int, double>, FarPlan> known;
  const auto [found, is_new] = known.try_emplace({world_size, mbit});
  if (is_new) found->second = make_far_plan(far_options(world_size, mbit));
  return found->second;
}

/// Its ways exchange every thousand steps.
class FarPlanOfSlowLinks : public LongRuns {};

TEST(FarPlan, TakesAllReduceWhereLinksAreFast) {
  const FarPlan plan = make_far_plan(far_options(2, 1e6, 1e-6));
  EXPECT_TRUE(plan.rows.front().fits);
  EXPECT_EQ(plan.rows.front().expected_gap, 0.0);
  EXPECT_EQ(plan.rows.front().every, 1);
}

TEST(FarPlan, FindsTheSmallestPeriodWithinTheBudget) {
  const FarPlan& plan = plan_of(4, 100);
  for (const FarRow& row : plan.rows) {
    SCOPED_TRACE(concat(row.way, " ", row.codec, " every ", row.every));
    EXPECT_EQ(row.fits, row.step.step_s <= 1.1 * plan.local_s);
    EXPECT_NEAR(row.efficiency, plan.local_s / row.step.step_s, 1e-12);
  }
  // 40 MB need 3.2 s at 100 Mbit/s, in int8 0.8 s. One step of 0.1 s hides as much of it. The other
  // 0.7 s are 10 % of 70 steps, and 128 is the next power of two.
  const auto pairs = std::ranges::find_if(plan.rows, [](const FarRow& row) {
    return row.way == "outer in pairs" && row.codec == "int8" && row.late == 1;
  });
  ASSERT_NE(pairs, plan.rows.end());
  EXPECT_EQ(pairs->every, 128);
  EXPECT_NEAR(pairs->exchange_s, 0.8, 0.05);
  EXPECT_NEAR(pairs->step.bytes_sent, 10e6 / 128.0, 1e4);
}

TEST(FarPlan, SumsSparseMovesInEveryStepThatHidesThem) {
  // A rank sends 40 MB / 146 to each of three others: 66 ms at 100 Mbit/s. A step has 100 ms.
  const FarRow& row = plan_of(4, 100).rows.front();
  EXPECT_EQ(row.codec, "topk");
  EXPECT_TRUE(contains(row.yaml, "every: 1}")) << row.yaml;
  EXPECT_NEAR(row.step.bytes_sent, 3.0 * 40e6 / 146.0, 1e4);
}

TEST_F(FarPlanOfSlowLinks, HasShorterPeriodsWhereAveragesTravel) {
  // 10 MB in int8 take 8 s at 10 Mbit/s. 64 steps of 0.1 s hide 6.4 s, and the rest is 6 % of 256
  // steps; without travelling the 8 s must be 10 % of the steps.
  const FarPlan& plan = plan_of(4, 10);
  std::map<std::int64_t, std::int64_t> every_of;
  for (const FarRow& row : plan.rows) {
    if (row.way != "outer in pairs" || row.codec != "int8") continue;
    EXPECT_TRUE(row.fits);
    every_of[row.late] = row.every;
    EXPECT_EQ(row.allowed_s, static_cast<double>(row.late) * plan.local_s);
    EXPECT_EQ(contains(row.yaml, "late:"), row.late > 1);
  }
  EXPECT_EQ(every_of, (std::map<std::int64_t, std::int64_t>{{1, 1024}, {64, 256}}));
}

TEST(FarPlan, NeedsLongerPeriodsOnSlowerLinks) {
  using Key = std::tuple<std::string, std::string, bool>;
  std::map<Key, std::int64_t> last;
  for (const double mbit : {1000.0, 100.0, 10.0}) {
    std::map<Key, std::int64_t> now;
    for (const FarRow& row : plan_of(4, mbit).rows) {
      now[{row.way, row.codec, contains(row.yaml, "late:")}] = row.every;
    }
    for (const auto& [key, every] : last) EXPECT_GE(now.at(key), every) << std::get<0>(key);
    last = now;
  }
}

TEST(FarPlan, DoesNotTakeABacklogForSpeed) {
  // A step computes for 0.1 s, and gossip needs 0.135 s.
  PlanOptions options = far_options(4, 40.0 * 8.0 / 0.135);
  const FarPlan plan = make_far_plan(options);
  const auto gossip = std::ranges::find_if(
      plan.rows, [](const FarRow& row) { return row.way == "gossip" && row.codec == "fp32"; });
  ASSERT_NE(gossip, plan.rows.end());
  EXPECT_NEAR(gossip->step.step_s, 0.136, 0.002);
  EXPECT_FALSE(gossip->fits);
}

TEST(FarPlan, NamesLargeBucketsForRareExchanges) {
  PlanOptions options = far_options(2, 1000);
  options.model.bucket_bytes = planned_buckets(800e6, 25e6, 2);
  const FarPlan plan = make_far_plan(options);
  for (const FarRow& row : plan.rows) {
    EXPECT_EQ(contains(row.yaml, "buckets: {size_mb: 191}"), contains(row.way, "outer"))
        << row.yaml;
  }
  const std::string text = to_text(plan);
  EXPECT_TRUE(contains(text, plan.recommendation));
  EXPECT_TRUE(contains(text, plan.rows.front().yaml));
}

TEST(FarPlan, ComesWithConfigurationsThatCanBeRead) {
  for (const auto& [size, mbit] : {std::pair{3, 50.0}, {4, 100.0}}) {
    const PlanOptions options = far_options(size, mbit);
    for (const FarRow& row : plan_of(size, mbit).rows) {
      const Options root(parse_yaml(row.yaml, "far plan"));
      EXPECT_NO_THROW({
        static_cast<void>(read_algorithm(root));
        if (root.has("comm")) {
          EXPECT_NE(find_codec(root.section("comm").text("codec", "")), nullptr);
        }
        if (root.has("topology")) {
          static_cast<void>(read_topology(root.named_section("topology"), options.model.world));
        }
      }) << row.yaml;
    }
  }
}

TEST_F(FarPlanOfSlowLinks, SaysSoWhereNothingIsInTheBudget) {
  PlanOptions options = far_options(2, 0.001);
  options.budget = 0.0;
  const FarPlan plan = make_far_plan(options);
  EXPECT_FALSE(plan.rows.front().fits);
  EXPECT_TRUE(
      contains(plan.recommendation, "with up to 1024 steps between two exchanges no steps"));
}

TEST_F(FarPlanOfSlowLinks, SaysSoWhereExchangesAreTooRareToHelp) {
  const FarPlan& slow = plan_of(4, 1);
  EXPECT_TRUE(slow.rows.front().fits);
  EXPECT_FALSE(slow.rows.front().helps);
  EXPECT_TRUE(contains(slow.recommendation, "too slow for this model")) << slow.recommendation;
  EXPECT_TRUE(contains(to_text(slow), " as alone\n"));
  const FarPlan& fast = plan_of(4, 1000);
  EXPECT_TRUE(fast.rows.front().helps);
  EXPECT_FALSE(contains(fast.recommendation, "too slow"));
}

TEST(FarPlan, RefusesOneRank) {
  const std::string what =
      what_of<ConfigError>([] { static_cast<void>(make_far_plan(far_options(1, 100))); });
  EXPECT_TRUE(contains(what, "--world-size"));
}

TEST(FarPlan, IsAskedForByAKey) {
  const std::string text =
      "world_size: 4, model_bytes: 4e7, compute_ms: 100, between_gbit: 0.1, far: true";
  const PlanRequest request = read_plan(Options::parse(text));
  EXPECT_TRUE(request.is_far);
  const auto json = plan_as_json(request);
  EXPECT_EQ(json["world_size"], 4);
  EXPECT_EQ(json["recommendation"], make_far_plan(request.options).recommendation);
  EXPECT_EQ(json["yaml"], json["rows"][0]["yaml"]);
  const std::string what = what_of<ConfigError>(
      [&] { static_cast<void>(read_plan(Options::parse(text + ", codec: int8"))); });
  EXPECT_TRUE(contains(what, "chooses algorithm and codec by the budget")) << what;
}

}  // namespace
}  // namespace gossamer::apps

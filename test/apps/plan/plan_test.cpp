// The plan: what is in it, in which order, and that its configurations can be used.

#include "apps/plan/plan.hpp"

#include "test/base/thrown.hpp"
#include "test/core/ranks.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

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

const PlanRow& row_of(const Plan& plan, const std::string& label) {
  const auto found = std::ranges::find(plan.rows, label, &PlanRow::label);
  if (found == plan.rows.end()) throw std::logic_error(label + " is not in the plan");
  return *found;
}

TEST(Plan, HasEveryTopologyThatFitsOnce) {
  for (const auto& [size, local] : {std::pair(8, 2), std::pair(6, 3), std::pair(2, 1)}) {
    const PlanOptions options = options_for(size, local);
    const Plan plan = make_plan(options);
    std::set<std::string> labels;
    for (const PlanRow& row : plan.rows) {
      EXPECT_TRUE(labels.insert(row.label).second) << row.label;
      EXPECT_GT(row.step.step_s, 0.0) << row.label;
    }
    EXPECT_TRUE(labels.contains("all-reduce"));
    for (const TopologyEntry& entry : topology_table()) {
      EXPECT_EQ(labels.contains(std::string(entry.name)),
                entry.fits(options.model.world) && !entry.needs_options)
          << entry.name;
    }
  }
}

TEST(Plan, IsOrderedByWhatWasAskedFor) {
  PlanOptions options = options_for(8, 2);
  const auto target_of = [](const PlanRow& row) {
    return row.target_s.value_or(std::numeric_limits<double>::infinity());
  };
  const Plan by_target = make_plan(options);
  for (std::size_t i = 1; i < by_target.rows.size(); ++i) {
    EXPECT_LE(target_of(by_target.rows[i - 1]), target_of(by_target.rows[i]) + 1e-9);
  }
  options.rank_by = RankBy::kStep;
  const Plan by_step = make_plan(options);
  for (std::size_t i = 1; i < by_step.rows.size(); ++i) {
    EXPECT_LE(by_step.rows[i - 1].step.step_s, by_step.rows[i].step.step_s + 1e-9);
  }
  EXPECT_NE(by_step.rows.front().label, by_target.rows.front().label);
}

TEST(Plan, CountsTheRoundsOfTheSpectrum) {
  const Plan plan = make_plan(options_for(8, 2));
  const PlanRow& exp = row_of(plan, "one-peer-exp");
  ASSERT_TRUE(exp.rounds && exp.target_s);
  EXPECT_EQ(exp.rounds->rounds, 3);
  EXPECT_NEAR(*exp.target_s, 3.0 * exp.step.step_s, 1e-12);
  EXPECT_EQ(row_of(plan, "complete").rounds->rounds, 1);
  EXPECT_EQ(row_of(plan, "all-reduce").rounds->rounds, 1);
  EXPECT_GT(row_of(plan, "ring").rounds->rounds, 3);
  EXPECT_LE(row_of(plan, "base-k, k: 3").rounds->rounds, row_of(plan, "base-k").rounds->rounds);
}

TEST(Plan, GivesConfigurationsThatCanBeRead) {
  const PlanOptions options = options_for(8, 2);
  for (const PlanRow& row : make_plan(options).rows) {
    const Options root(parse_yaml(row.yaml, "plan"));
    const std::string algorithm = root.choice("algorithm", {"gossip", "allreduce"}, std::nullopt);
    EXPECT_EQ(algorithm == "allreduce", row.label == "all-reduce");
    if (algorithm == "gossip") {
      const auto topology = read_topology(root.section("topology"), options.model.world);
      EXPECT_TRUE(row.label.starts_with(topology->name())) << row.label;
    }
    root.reject_unknown();
  }
}

TEST(Plan, HasTheAlgorithmsThatAreAskedFor) {
  PlanOptions options = options_for(8, 2);
  const Plan plain = make_plan(options);
  options.algorithms = {"gossip", {"late_average", Options::parse("every: 4")}, "relay"};
  const Plan plan = make_plan(options);
  const PlanRow& late = row_of(plan, "late_average {every: 4}");
  EXPECT_EQ(late.yaml, "algorithm: {name: late_average, every: 4}\n");
  EXPECT_FALSE(late.rounds.has_value());
  EXPECT_NEAR(late.step.bytes_sent, 2e8 * 2.0 * 7.0 / 8.0 / 4.0, 1.0);
  EXPECT_FALSE(row_of(plan, "relay, chain").rounds.has_value());
  const auto step_s = [](const PlanRow& row) { return std::round(1e9 * row.step.step_s); };
  EXPECT_TRUE(std::ranges::is_sorted(plan.rows, {}, step_s));
  // Gossip without a codec is what the plan has anyway.
  for (const char* const topology : {"ring", "hierarchical, leaders: complete"}) {
    const PlanRow& row = row_of(plan, concat("gossip, ", topology));
    EXPECT_EQ(row.step.step_s, row_of(plain, topology).step.step_s);
    EXPECT_EQ(row.step.bytes_sent, row_of(plain, topology).step.bytes_sent);
    EXPECT_EQ(row.target_s, row_of(plain, topology).target_s);
    EXPECT_EQ(row.yaml, row_of(plain, topology).yaml);
  }
}

TEST(Plan, HasEncodedMessages) {
  PlanOptions options = options_for(8, 2);
  const double plain = row_of(make_plan(options), "one-peer-exp").step.bytes_sent;
  options.codec = find_codec("bf16");
  const Plan plan = make_plan(options);
  const PlanRow& row = row_of(plan, "gossip, one-peer-exp");
  EXPECT_NEAR(row.step.bytes_sent, plain / 2.0, 1e-6 * plain);
  EXPECT_NE(row.yaml.find("codec: bf16"), std::string::npos);
  EXPECT_EQ(row_of(plan, "allreduce").rounds->rounds, 1);
  options.algorithms = {"choco"};
  EXPECT_THROW(make_plan(options), ConfigError);
  options.codec = find_codec("topk");
  options.algorithms.clear();
  EXPECT_TRUE(contains(what_of<ConfigError>([&] { static_cast<void>(make_plan(options)); }),
                       "--codec topk goes with neither allreduce nor gossip"));
  options.algorithms = {{"outer", Options::parse("every: 10, momentum: 0")}};
  EXPECT_LT(make_plan(options).rows.front().step.bytes_sent, plain / 100.0);
}

TEST(Plan, RecommendsItsFirstRow) {
  PlanOptions options = options_for(8, 2);
  for (const RankBy rank_by : {RankBy::kTarget, RankBy::kStep}) {
    options.rank_by = rank_by;
    const Plan plan = make_plan(options);
    EXPECT_TRUE(plan.recommendation.starts_with("Take " + plan.rows.front().label + ":"))
        << plan.recommendation;
    EXPECT_TRUE(plan.recommendation.ends_with("."));
    const auto json = to_json(plan);
    EXPECT_EQ(json.at("yaml"), plan.rows.front().yaml);
    EXPECT_EQ(json.at("rows").size(), plan.rows.size());
    const std::string text = to_text(plan, options);
    EXPECT_TRUE(contains(text, plan.recommendation + "\n\n" + plan.rows.front().yaml));
    for (const PlanRow& row : plan.rows) EXPECT_TRUE(contains(text, row.label + " ")) << row.label;
  }
}

TEST(Plan, IsTheSameEveryTime) {
  PlanOptions options = options_for(6, 2);
  options.model.straggler_cv = 0.2;
  const std::string first = to_json(make_plan(options)).dump();
  EXPECT_EQ(to_json(make_plan(options)).dump(), first);
  options.model.seed = 2;
  EXPECT_NE(to_json(make_plan(options)).dump(), first);
}

TEST(Plan, WorksForOneRankAndForMany) {
  PlanOptions one = options_for(1, 1);
  one.model.links = {};
  EXPECT_TRUE(contains(make_plan(one).recommendation, "exchanges nothing"));
  EXPECT_GT(make_plan(options_for(96, 8)).rows.size(), 10U);
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
  refuses([](PlanOptions& options) { options.target = 0.0; }, "--target");
  refuses([](PlanOptions& options) { options.target = 1.0; }, "--target");
  refuses([](PlanOptions& options) { options.model.links.between.reset(); }, "between nodes");
  EXPECT_THROW(planned_buckets(0.0, 1e6, 8), ConfigError);
}

}  // namespace
}  // namespace gossamer::apps

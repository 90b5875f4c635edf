// Regions: reading them, what a transfer between them takes, and what the plan makes of them.

#include "apps/lab/plan/regions.hpp"

#include "test/apps/lab/plan/predictions.hpp"
#include "test/core/ranks.hpp"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "apps/lab/plan/plan.hpp"
#include "base/error.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

/// Two regions of equally many nodes.
Regions two_regions(int nodes, const RegionPath& path) {
  return {.list = {{"a", nodes}, {"b", nodes}}, .paths = {{{}, path}, {path, {}}}};
}

/// A bucket of 1 MB takes a second between nodes of a region.
StepModel plain(const Regions& regions) {
  return {.world = {.size = 4},
          .links = {.between = LinkSpeed{.bandwidth = 1e6}, .regions = regions},
          .bucket_bytes = {1e6}};
}

std::string complaint(const std::string& rest) {
  const std::string text = "{between: {latency_s: 0, bandwidth_bytes_per_s: 1}, " + rest + "}";
  return what_of<ConfigError>([&] { read_links(Options::parse(text)); });
}

TEST(Regions, AreReadAsTheyAreWritten) {
  Links links = assumed_links();
  links.regions = two_regions(3, {.latency_s = 0.25, .bandwidth = 5e6});
  EXPECT_EQ(read_links(Options::parse(to_json(links).dump())), links);
}

TEST(Regions, SayWhatIsWrongInAFile) {
  const std::string list = "regions: [{name: a}, {name: b}, {name: c}], ";
  const std::string speed = "latency_s: 0, bandwidth_bytes_per_s: 1}";
  EXPECT_TRUE(contains(complaint("across: [{between: [a, b], " + speed + "]"), "without regions"));
  EXPECT_TRUE(contains(complaint("regions: [{name: a}, {name: a}]"), "a second time"));
  EXPECT_TRUE(contains(complaint(list + "across: [{between: [a, d], " + speed + "]"), "names d"));
  EXPECT_TRUE(contains(complaint(list + "across: [{between: [a, a], " + speed + "]"),
                       "two different regions"));
  EXPECT_TRUE(contains(complaint(list + "across: [{between: [a, b], " + speed + "]"),
                       "lacks the pair a, c"));
  EXPECT_TRUE(contains(complaint(list + "across: [{between: [a, b], " + speed +
                                 ", {between: " + "[b, a], " + speed + "]"),
                       "a second time"));
}

TEST(Regions, ChangeNothingWhenTheirPathsAreAsFastAsOtherLinks) {
  StepModel model = plain({});
  model.links.between->latency_s = 0.125;
  StepModel split = model;
  split.links.regions = two_regions(2, {.latency_s = 0.125, .bandwidth = 1e6});
  for (const TopologyEntry& entry : topology_table()) {
    if (entry.needs_options) continue;
    const auto topology = entry.make(model.world, Options(), {});
    EXPECT_EQ(predict_gossip(split, *topology).step_s, predict_gossip(model, *topology).step_s)
        << entry.name;
  }
  EXPECT_EQ(predict_all_reduce(split).step_s, predict_all_reduce(model).step_s);
}

TEST(Regions, SlowATransferThatCrosses) {
  const StepModel model = plain(two_regions(2, {.latency_s = 3.0, .bandwidth = 0.5e6}));
  const auto step_s = [&](std::vector<Edge> edges) {
    return predict_gossip(model, *make_periodic("test", {fill_round(std::move(edges), 4)})).step_s;
  };
  EXPECT_NEAR(step_s({averaging_edge({0, 1}), averaging_edge({2, 3})}), 1.0, 1e-12);
  EXPECT_NEAR(step_s({averaging_edge({0, 2}), averaging_edge({1, 3})}), 2.0 + 3.0, 1e-12);
  // A ring of four: six steps of three seconds each, and 1.5 MB over the slow path.
  EXPECT_NEAR(predict_all_reduce(model).step_s, 6.0 * 3.0 + 1.5 / 0.5, 1e-12);
}

TEST(Regions, MustHaveTheNodesOfTheWorld) {
  const StepModel model = plain(two_regions(3, {}));
  EXPECT_THROW(predict_all_reduce(model), ConfigError);
}

TEST(Regions, GiveThePlanRegionsAsNodesAndBytesAcross) {
  PlanOptions options{.model = plain(two_regions(2, {.latency_s = 0.1, .bandwidth = 1e5}))};
  options.model.compute_s = 4.0;
  const Plan plan = make_plan(options);
  const auto row_of = [&](const std::string& label) {
    const auto found =
        std::ranges::find_if(plan.rows, [&](const PlanRow& row) { return row.label() == label; });
    if (found == plan.rows.end()) throw std::logic_error(label + " is not in the plan");
    return *found;
  };
  // Two hops of the ring of four cross, with 1.5 MB each, and with 6 bytes for the element that
  // says who has a gradient of the one parameter.
  EXPECT_NEAR(row_of("all-reduce, fp32").step.bytes_across, 3e6 + 12.0, 1e-6);
  // The two leaders send 1 MB each, in every 16th step.
  const PlanRow row =
      row_of("gossip on hierarchical by region, leaders: complete, leaders_every: 16, fp32");
  EXPECT_NEAR(row.step.bytes_across, 2e6 / 16.0, 1e-6);
  EXPECT_TRUE(contains(row.yaml, "local_size: 2"));
  // Rows within the budget come first.
  EXPECT_TRUE(plan.rows.front().fits);
  EXPECT_TRUE(
      std::ranges::is_sorted(plan.rows, {}, [](const PlanRow& each) { return each.fits ? 0 : 1; }));
}

TEST(Regions, GiveTheShortestStepsWhereNoRowIsInTheBudget) {
  PlanOptions options{.model = plain(two_regions(2, {.latency_s = 10.0, .bandwidth = 1e5})),
                      .budget = 0.0};
  // Even the steps that an exchange may travel are shorter than its latency.
  options.model.compute_s = 1e-3;
  const Plan plan = make_plan(options);
  EXPECT_TRUE(contains(plan.recommendation, "No steps of this plan take at most 0 % longer"))
      << plan.recommendation;
  for (const PlanRow& row : plan.rows) {
    if (!row.expected_gap || !row.helps()) continue;
    EXPECT_GE(row.step.step_s, plan.rows.front().step.step_s) << row.label();
  }
}

}  // namespace
}  // namespace gossamer::apps

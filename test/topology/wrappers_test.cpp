// Topologies made of others.

#include "test/base/thrown.hpp"

#include <cmath>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "topology/edge_weights.hpp"
#include "topology/later_rounds.hpp"
#include "topology/registry.hpp"
#include "topology/spectrum.hpp"
#include "topology/verify.hpp"

namespace gossamer::wrappers_test {
namespace {

std::unique_ptr<Topology> build(const std::string& yaml, int size) {
  const Options options = Options::parse(yaml);
  auto topology = read_topology(options, {.size = size});
  options.reject_unknown();
  EXPECT_EQ(find_violation(*topology, size, 200), std::nullopt) << yaml;
  return topology;
}

std::string refusal(const std::string& yaml, int size = 8) {
  return what_of<ConfigError>([&] { (void)read_topology(Options::parse(yaml), {.size = size}); });
}

TEST(Alternate, TakesTurns) {
  const auto ring = make_topology("ring", {.size = 8});
  const auto exp = make_topology("one-peer-exp", {.size = 8});
  const auto both = build("alternate: [ring, {name: one-peer-exp}]", 8);
  EXPECT_EQ(both->period(), 2 * 6);
  EXPECT_EQ(both->name(), "alternate [ring, one-peer-exp]");
  for (std::int64_t k = 0; k < 20; ++k) {
    EXPECT_EQ(both->round(2 * k), ring->round(k));
    EXPECT_EQ(both->round(2 * k + 1), exp->round(k));
  }
  EXPECT_EQ(build("alternate: [ring, random-matching]", 8)->period(), std::nullopt);
  EXPECT_THROW((void)both->round(-1), std::logic_error);
}

TEST(Every, RestsInBetween) {
  const auto base = make_topology("base-k", {.size = 6});
  const auto rare = build("every: {base: {name: base-k, k: 1}, period: 3}", 6);
  EXPECT_EQ(rare->period(), 3 * *base->period());
  for (std::int64_t k = 0; k < 12; ++k) {
    EXPECT_EQ(rare->round(3 * k), complete_round({}, 6));
    EXPECT_EQ(rare->round(3 * k + 1), complete_round({}, 6));
    EXPECT_EQ(rare->round(3 * k + 2), base->round(k));
  }
  EXPECT_EQ(exact_after(*rare, 6), *rare->period());
}

TEST(FromRound, BeginsLater) {
  const std::shared_ptr<const Topology> base = make_topology("one-peer-exp", {.size = 8});
  const auto later = from_round(base, 2);
  EXPECT_EQ(later->name(), "one-peer-exp from round 2");
  EXPECT_EQ(later->period(), 3);
  for (std::int64_t k = 0; k < 8; ++k) EXPECT_EQ(later->round(k), base->round(k + 2));
  EXPECT_EQ(find_violation(*later, 8, 50), std::nullopt);
  EXPECT_EQ(from_round(base, 0), base);
  EXPECT_THROW((void)from_round(base, -1), std::logic_error);
}

TEST(FromRound, MovesTurningPoints) {
  const std::shared_ptr<const Topology> phases = build(
      "phases: [{until: 3, topology: ring}, {until: 7, topology: chain}, {topology: star}]", 8);
  EXPECT_EQ(phases->turning_points(), (std::vector<std::int64_t>{3, 7}));
  EXPECT_EQ(from_round(phases, 3)->turning_points(), (std::vector<std::int64_t>{4}));
}

TEST(WithEdgeWeights, ChangesWeightsAndKeepsEdges) {
  const std::shared_ptr<const Topology> base =
      make_topology("hierarchical", {.size = 8, .node_size = 2});
  const auto weigh = [](const Edge& edge, std::int64_t k) {
    return (edge.ranks.front() + k) % 2 == 0 ? edge.weight : 0.75;
  };
  const auto other = with_edge_weights(base, weigh);
  EXPECT_EQ(find_violation(*other, 8, 50), std::nullopt);
  EXPECT_EQ(other->period(), std::nullopt);
  for (std::int64_t k = 0; k < 8; ++k) {
    Round expected = base->round(k);
    for (Edge& edge : expected.edges) {
      if (edge.ranks.size() > 1) edge.weight = weigh(edge, k);
    }
    EXPECT_EQ(other->round(k), expected) << k;
  }
}

TEST(WithEdgeWeights, TakesAShareOfTheMix) {
  const std::shared_ptr<const Topology> ring = make_topology("ring", {.size = 5});
  EXPECT_EQ(with_edge_weights(ring, adaptive_factor(1.0))->round(3), ring->round(3));
  for (const Edge& edge : with_edge_weights(ring, adaptive_factor(0.5))->round(0).edges) {
    EXPECT_EQ(edge.weight, edge.ranks.size() == 2 ? 0.75 : 1.0);
  }
}

TEST(WithEdgeWeights, ChangesTheShareForRoundsToCome) {
  const auto factor = std::make_shared<ChangingFactor>(1.0);
  const auto ring = with_edge_weights(make_topology("ring", {.size = 4}), adaptive_factor(factor));
  const auto weight = [&ring](std::int64_t k) { return ring->round(k).edges.front().weight; };
  factor->change(0.5, 3);
  factor->change(0.25, 4);
  factor->change(0.0, 4);
  EXPECT_EQ(weight(0), 0.5);
  EXPECT_EQ(weight(2), 0.5);
  EXPECT_EQ(weight(3), 0.75);
  EXPECT_EQ(weight(4), 1.0);
  EXPECT_EQ(weight(100), 1.0);
  factor->change(1.0, 4);
  EXPECT_EQ(weight(4), 0.5);
  EXPECT_THROW(factor->change(2.0, 5), ConfigError);
  EXPECT_THROW(factor->change(0.5, -1), std::logic_error);
}

TEST(WithEdgeWeights, RefusesWhatIsNoWeight) {
  const std::shared_ptr<const Topology> ring = make_topology("ring", {.size = 4});
  for (const double weight : {-0.1, 1.1, std::nan("")}) {
    const auto broken =
        with_edge_weights(ring, [weight](const Edge&, std::int64_t) { return weight; });
    const std::string what = what_of<ConfigError>([&] { (void)broken->round(1); });
    EXPECT_CONTAINS(what, "round 1, allowed: a number from 0 to 1");
    EXPECT_THROW((void)adaptive_factor(weight), ConfigError);
  }
  const auto arcs =
      with_edge_weights(make_topology("static-ring", {.size = 4}), adaptive_factor(0.5));
  EXPECT_CONTAINS(what_of<ConfigError>([&] { (void)arcs->round(0); }), "static-ring");
  EXPECT_THROW((void)with_edge_weights(nullptr, adaptive_factor(0.5)), ConfigError);
  EXPECT_THROW((void)with_edge_weights(ring, nullptr), ConfigError);
}

TEST(Phases, FollowEachOther) {
  const auto warm = build(
      "phases: [{until: 2, topology: complete}, {until: 5, topology: {name: local-sgd, sit_out: "
      "1}}, {topology: ring}]",
      4);
  EXPECT_EQ(warm->period(), std::nullopt);
  const auto complete = make_topology("complete", {.size = 4});
  const auto ring = make_topology("ring", {.size = 4});
  EXPECT_EQ(warm->round(1), complete->round(0));
  EXPECT_EQ(warm->round(2), complete_round({}, 4));
  EXPECT_EQ(warm->round(3), complete->round(0));
  EXPECT_EQ(warm->round(4), complete_round({}, 4));
  for (std::int64_t k = 0; k < 9; ++k) EXPECT_EQ(warm->round(5 + k), ring->round(k));
  EXPECT_EQ(build("phases: [{topology: ring}]", 4)->period(), 2);
}

TEST(Wrappers, Nest) {
  const auto nested = build(
      "alternate: [{every: {base: ring, period: 2}}, {phases: [{until: 3, topology: complete}, "
      "{topology: {alternate: [ring, torus]}}]}]",
      9);
  EXPECT_EQ(nested->round(3), make_topology("complete", {.size = 9})->round(0));
}

TEST(Wrappers, AreDirectedIfAPartIs) {
  EXPECT_TRUE(build("alternate: [ring, static-exp]", 8)->directed());
  EXPECT_FALSE(build("alternate: [ring, static-ring]", 8)->directed());
  EXPECT_TRUE(build("every: {base: static-exp, period: 2}", 8)->directed());
  EXPECT_TRUE(build("phases: [{until: 1, topology: ring}, {topology: static-exp}]", 8)->directed());
}

TEST(Wrappers, SayWhatIsWrongAndWhere) {
  EXPECT_CONTAINS(refusal("name: ring, alternate: [ring]"), "alternate: stands beside name");
  EXPECT_CONTAINS(refusal("alternate: []"), "alternate: is a list");
  EXPECT_CONTAINS(refusal("alternate: ring"), "alternate: is ring");
  EXPECT_CONTAINS(refusal("alternate: [ring, [torus]]"), "alternate[1]: is a list");
  EXPECT_CONTAINS(refusal("alternate: [ring, tours]"), "alternate[1].name: tours");
  EXPECT_CONTAINS(refusal("alternate: [ring, tours]"), "did you mean torus?");
  EXPECT_CONTAINS(refusal("every: {base: ring}"), "every.period: is missing");
  EXPECT_CONTAINS(refusal("every: {base: ring, period: 0}"), "every.period: 0");
  EXPECT_CONTAINS(refusal("every: {period: 2}"), "every.base.name: is missing");
  EXPECT_CONTAINS(refusal("phases: [{topology: ring}, {topology: ring}]"),
                  "phases[0].until: is missing");
  EXPECT_CONTAINS(refusal("phases: [{until: 3, topology: ring}]"),
                  "phases[0].until: the last phase has no end");
  EXPECT_CONTAINS(refusal("phases: [{until: 3, topology: ring}, {until: 3, topology: ring}, "
                          "{topology: ring}]"),
                  "phases[1].until: 3 is out of range");
  EXPECT_CONTAINS(refusal("alternate: [ring, one-peer-exp]", 6),
                  "alternate[1].name: one-peer-exp cannot be built");
}

TEST(Wrappers, AreWrittenDownAsTheyWereRead) {
  const std::string yaml =
      "alternate: [ring, {name: base-k, k: 2}, {every: {base: torus, period: 2}}]";
  const Options options = Options::parse(yaml);
  const auto topology = read_topology(options, {.size = 6});
  const std::string written = to_yaml(options.resolved());
  // parse() takes mappings in braces; a list of lines needs none.
  const auto again = build(
      "{alternate: [ring, {name: base-k, k: 2}, "
      "{every: {base: torus, period: 2}}]}",
      6);
  EXPECT_EQ(written,
            "alternate:\n"
            "  -\n"
            "    name: ring\n"
            "  -\n"
            "    name: base-k\n"
            "    k: 2\n"
            "  -\n"
            "    every:\n"
            "      base:\n"
            "        name: torus\n"
            "        rows: 0\n"
            "      period: 2\n");
  EXPECT_EQ(again->period(), topology->period());
}

}  // namespace
}  // namespace gossamer::wrappers_test

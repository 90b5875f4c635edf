#include "topology/verify.hpp"

#include "test/base/thrown.hpp"

#include <limits>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

Violation violation(const Round& round, int world_size, bool directed = false) {
  return find_violation(round, world_size, directed).value_or(Violation{"none"});
}

void expect_rule(const Violation& found, std::string_view rule, int rank) {
  EXPECT_EQ(found.rule, rule) << found.text;
  EXPECT_EQ(found.rank, rank) << found.text;
}

/// Two ranks that take `a` and `b` of each other.
Round two_arcs(double a, double b) {
  return {.arcs = {{0, 0, 1.0 - b}, {1, 0, a}, {0, 1, b}, {1, 1, 1.0 - a}}};
}

TEST(FindViolation, FindsNone) {
  EXPECT_EQ(find_violation(two_arcs(0.3, 0.3), 2, false), std::nullopt);
  EXPECT_EQ(find_violation(two_arcs(0.3, 0.4), 2, true), std::nullopt);
  const Round both{.edges = {averaging_edge({2, 3})}, .arcs = two_arcs(0.5, 0.5).arcs};
  EXPECT_EQ(find_violation(both, 4, false), std::nullopt);
}

TEST(FindViolation, NamesRuleAndRank) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_rule(violation({.edges = {{{0, 1}, 0.5}}}, 3), "partition", 2);
  expect_rule(violation({.edges = {{{0, 1}, 0.5}, {{1, 2}, 0.5}}}, 3), "partition", 1);
  expect_rule(violation({.edges = {{{0, 0}, 0.5}}}, 1), "partition", 0);
  expect_rule(violation({.edges = {{{0, 4}, 0.5}}}, 2), "ranks", 4);
  expect_rule(violation({.edges = {{{0, 1}, nan}}}, 2), "weight", 0);
  expect_rule(violation({.edges = {{{0}, 0.5}}}, 1), "weight", 0);
  expect_rule(violation({.edges = {{{1, 0}, 0.5}}}, 2), "order", 1);
  expect_rule(violation({.edges = {{{2, 3}, 0.5}, {{0, 1}, 0.5}}}, 4), "order", -1);
  expect_rule(violation({}, 0), "ranks", -1);
  expect_rule(violation({.edges = {{{0, 1}, 0.5}}, .node_size = 2}, 3), "ranks", -1);

  expect_rule(violation({.arcs = {{0, 7, 0.5}}}, 2), "ranks", 7);
  expect_rule(violation({.arcs = {{0, 0, -0.5}}}, 1), "weight", 0);
  expect_rule(violation({.arcs = {{0, 0, nan}}}, 1), "weight", 0);
  expect_rule(violation({.arcs = {{0, 1, 0.5}, {0, 0, 0.5}}}, 2), "order", -1);
  expect_rule(violation({.arcs = {{0, 0, 0.5}, {0, 0, 0.5}}}, 1), "arcs", 0);
  Round both = two_arcs(0.5, 0.5);
  both.edges = {averaging_edge({1})};
  expect_rule(violation(both, 2), "partition", 1);
}

TEST(FindViolation, WantsMassToBeKept) {
  Round leaks = two_arcs(0.3, 0.3);
  leaks.arcs[0].weight = 0.6;
  expect_rule(violation(leaks, 2), "columns", 0);
  expect_rule(violation(leaks, 2, true), "columns", 0);
  EXPECT_CONTAINS(violation(leaks, 2).text, "sums to 0.9");
  expect_rule(violation(two_arcs(0.3, 0.4), 2), "rows", 0);
}

TEST(FindViolation, WantsBothWaysUnlessDirected) {
  const Round one_way{.arcs = {{0, 0, 0.5}, {0, 1, 0.5}, {1, 1, 1.0}}};
  const Violation found = violation(one_way, 2);
  expect_rule(found, "pairs", 1);
  EXPECT_CONTAINS(found.text, "rank 0 does not hear from rank 1");
  EXPECT_EQ(find_violation(one_way, 2, true), std::nullopt);
  const Round all_away{.arcs = {{0, 1, 1.0}, {1, 1, 1.0}}};
  expect_rule(violation(all_away, 2, true), "rows", 0);
}

TEST(FindViolation, SpeaksOfNodesInTwoLevels) {
  const Round round = two_level_round({.edges = {averaging_edge({0, 1})}}, 2);
  const Violation found = violation(round, 6);
  expect_rule(found, "partition", 2);
  EXPECT_EQ(found.text, "Node 2 stands in no edge of a round.");
}

TEST(FindViolation, NamesTheRound) {
  const auto topology = make_periodic("mine", {complete_round({averaging_edge({0, 1})}, 2)});
  EXPECT_EQ(find_violation(*topology, 2, 5), std::nullopt);
  EXPECT_EQ(find_violation(*topology, 3, 5).value().round, 0);
}

TEST(FindViolation, WantsEverybodyToBeReached) {
  const auto islands =
      make_periodic("islands", {complete_round({averaging_edge({0, 1}), averaging_edge({2, 3})}, 4),
                                complete_round({averaging_edge({2, 3})}, 4)});
  const auto found = find_violation(*islands, 4, 10);
  expect_rule(found.value(), "connected", 2);
  EXPECT_EQ(found->round, -1);
  const auto bridged =
      make_periodic("bridged", {complete_round({averaging_edge({0, 1}), averaging_edge({2, 3})}, 4),
                                complete_round({averaging_edge({1, 2})}, 4)});
  EXPECT_EQ(find_violation(*bridged, 4, 10), std::nullopt);
  EXPECT_EQ(find_violation(*bridged, 4, 1).value().rule, "connected");
  // Rank 1 hears, and is never heard.
  const auto sink = make_periodic("sink", {Round{.arcs = {{0, 0, 0.5}, {0, 1, 0.5}, {1, 1, 1.0}}}},
                                  /*directed=*/true);
  EXPECT_EQ(find_violation(*sink, 2, 1).value().text,
            "Nothing that rank 1 knows ever reaches rank 0.");
}

}  // namespace
}  // namespace gossamer

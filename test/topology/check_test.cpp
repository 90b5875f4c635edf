// What keeps a run from following a topology is found before the run starts.

#include "topology/check.hpp"

#include "test/base/thrown.hpp"

#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "topology/push_sum.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

/// Four ranks, two on each node.
constexpr World kWorld{.size = 4, .node_size = 2};

std::unique_ptr<Topology> read(const std::string& yaml) {
  return read_topology(Options::parse(yaml), kWorld);
}

std::string refusal(const std::string& yaml) {
  return what_of<ConfigError>([&] { static_cast<void>(read(yaml)); });
}

/// A from-file section for what stands in `text`.
std::string from_file(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "gossamer_check_" + name + ".yaml";
  std::ofstream(path) << text;
  return "{name: from-file, path: " + path + "}";
}

/// Rank 0 hears more than it gives away, so weights differ within the first node.
std::string unequal() {
  return from_file(
      "unequal",
      "{world_size: 4, directed: true, edges: [[0, 1], [1, 2], [2, 3], [3, 0], [1, 0]]}");
}

TEST(CheckTopology, FindsAPhaseThatPushSumCannotEnter) {
  const std::string phases =
      "phases: [{until: 1000, topology: " + unequal() + "}, {topology: hierarchical}]";
  const std::string text = refusal(phases);
  EXPECT_CONTAINS(text,
                  "phases: phases [from-file, hierarchical from 1000]: in round 1000: "
                  "Ranks 0 and 1 of one node have different push-sum weights");
  // The same inside other topologies.
  EXPECT_CONTAINS(refusal("alternate: [{" + phases + "}, ring, ring]"), "in round 3000: ");
  EXPECT_CONTAINS(refusal("every: {base: {" + phases + "}, period: 10}"), "in round 10009: ");
  EXPECT_CONTAINS(refusal("phases: [{until: 5, topology: ring}, {topology: {" + phases + "}}]"),
                  "in round 1005: ");
  EXPECT_CONTAINS(refusal("alternate: [" + unequal() + ", hierarchical]"), "in round 1: ");
}

TEST(CheckTopology, LetsPhasesPassThatPushSumCanEnter) {
  EXPECT_EQ(refusal("phases: [{until: 1000, topology: static-exp}, {topology: hierarchical}]"), "");
  EXPECT_EQ(
      refusal("phases: [{until: 1000, topology: hierarchical}, {topology: " + unequal() + "}]"),
      "");
  // The ranks of a node average before the nodes do.
  EXPECT_EQ(refusal("phases: [{until: 1000, topology: " + unequal() +
                    "}, {topology: {name: hierarchical, leaders_every: 2}}]"),
            "");
}

TEST(CheckTopology, TakesNoRoundingErrorForADifference) {
  // Doubly stochastic, with sums that come out one unit in the last place apart.
  const std::string thirds = from_file(
      "thirds",
      "{world_size: 4, directed: true, rounds: [{arcs: [[0, 1, 0.1], [1, 2, 0.1], [2, 3, 0.1], "
      "[3, 0, 0.1], [0, 2, 0.2], [1, 3, 0.2], [2, 0, 0.2], [3, 1, 0.2], [0, 3, 0.3], [1, 0, 0.3], "
      "[2, 1, 0.3], [3, 2, 0.3]]}]}");
  const auto topology = read("alternate: [" + thirds + ", hierarchical]");
  PushSum push_sum(kWorld.size);
  for (std::int64_t k = 0; k < 200; ++k) EXPECT_NO_THROW((void)next_round(*topology, k, push_sum));
}

TEST(CheckTopology, RefusesAPeriodThatIsTooLongToPrepare) {
  EXPECT_EQ(refusal("{name: local-sgd, sit_out: 1000000}"), "");
  const std::string text =
      refusal("alternate: [{name: local-sgd, sit_out: 1000}, {name: local-sgd, sit_out: 1001}]");
  EXPECT_CONTAINS(text,
                  "alternate: alternate [local-sgd, local-sgd] repeats only after "
                  "2006004 rounds");
  EXPECT_CONTAINS(text, "allowed: a period of at most 1048576 rounds");
  EXPECT_CONTAINS(text, "common factors");
  EXPECT_CONTAINS(refusal("{name: hierarchical, leaders: {every: {base: ring, period: 2}}, "
                          "leaders_every: 1000000}"),
                  "name: hierarchical repeats only after 4000000 rounds");
}

TEST(CheckTopology, KnowsPeriodsThatNoIntegerHolds) {
  std::string nested = "ring";
  for (int depth = 0; depth < 5; ++depth)
    nested = "{every: {base: " + nested + ", period: 1000000}}";
  EXPECT_CONTAINS(refusal(nested), "repeats only after more than 1099511627776 rounds");
}

/// Rank 0 gives half of what it has to rank 1 and hears nothing.
class Leak : public Topology {
 public:
  [[nodiscard]] std::string name() const override { return "leak"; }
  [[nodiscard]] std::optional<std::int64_t> period() const override { return 1; }
  [[nodiscard]] Round round(std::int64_t) const override {
    return {.arcs = {{0, 0, 0.5}, {0, 1, 0.5}, {1, 1, 1.0}}};
  }
  [[nodiscard]] bool directed() const override { return true; }
};

TEST(CheckTopology, FindsARankThatLosesItsWeight) {
  try {
    check_topology(Leak(), 2);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_CONTAINS(error.what(), "leak: in round 39 the push-sum weight of rank 0");
  }
}

TEST(CheckTopology, IsSilentAboutEveryTopologyOfTheTable) {
  for (const TopologyEntry& entry : topology_table()) {
    if (entry.needs_options) continue;
    for (const int size : {1, 2, 4, 8, 64}) {
      const auto topology = make_topology(entry.name, {.size = size});
      EXPECT_EQ(find_obstacle(*topology, size), std::nullopt) << entry.name << ", " << size;
    }
  }
}

}  // namespace
}  // namespace gossamer

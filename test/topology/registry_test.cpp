#include "topology/registry.hpp"

#include "test/base/thrown.hpp"
#include "test/topology/worlds.hpp"

#include <stdexcept>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

std::string refusal(std::string_view name, const World& world, const Options& options = Options()) {
  return what_of<ConfigError>([&] { (void)make_topology(name, world, options); });
}

TEST(TopologyTable, HasWholeRowsUnderCanonicalNames) {
  for (const TopologyEntry& entry : topology_table()) {
    EXPECT_EQ(canonical_name(entry.name), entry.name);
    EXPECT_FALSE(entry.summary.empty()) << entry.name;
    EXPECT_FALSE(entry.sizes.empty()) << entry.name;
    ASSERT_NE(entry.fits, nullptr) << entry.name;
    ASSERT_NE(entry.make, nullptr) << entry.name;
  }
  EXPECT_EQ(
      topology_names(),
      (std::vector<std::string>{
          "complete", "ring", "one-peer-exp", "alternating-exp-ring", "base-k", "random-matching",
          "shift-one", "hierarchical", "local-sgd", "star", "grid", "torus", "static-ring", "chain",
          "binary-tree", "static-exp", "directed-one-peer-exp", "from-file"}));
}

TEST(TopologyTable, FitsNoWorldWithoutRanks) {
  for (const TopologyEntry& entry : topology_table()) {
    EXPECT_FALSE(entry.fits({.size = 0})) << entry.name;
    EXPECT_FALSE(entry.fits({.size = -4})) << entry.name;
  }
}

TEST(TopologyTable, FactoriesRefuseWhatDoesNotFit) {
  const Options options;
  for (const TopologyCase& c : topology_cases(false)) {
    for (const TopologyEntry& entry : topology_table()) {
      if (entry.name != c.topology) continue;
      EXPECT_THROW((void)entry.make(c.world, options, {}), std::logic_error) << to_string(c);
    }
  }
}

TEST(MakeTopology, TakesEitherSpelling) {
  const World world{.size = 4, .node_size = 2};
  for (const std::string_view name : {"one-peer-exp", "one_peer_exp", "One_Peer-EXP"}) {
    EXPECT_EQ(make_topology(name, world)->name(), "one-peer-exp") << name;
  }
  EXPECT_EQ(make_topology("alternating_exp_ring", world)->name(), "alternating-exp-ring");
}

TEST(MakeTopology, LeavesUnknownOptionsToTheCaller) {
  const Options options = Options::parse("name: ring, colour: blue");
  EXPECT_NO_THROW((void)make_topology("ring", {.size = 3}, options));
  EXPECT_THROW(options.reject_unknown(), ConfigError);
}

TEST(MakeTopology, SuggestsANameForAMistypedOne) {
  const std::string what = refusal("one_pear_exp", {.size = 4});
  EXPECT_CONTAINS(what, "one_pear_exp (did you mean one-peer-exp?)");
  for (const std::string& name : topology_names()) EXPECT_CONTAINS(what, name);
  const std::string strange = refusal("dodecahedron", {.size = 4});
  EXPECT_FALSE(contains(strange, "did you mean")) << strange;
  EXPECT_CONTAINS(strange, "alternating-exp-ring");
}

TEST(MakeTopology, SaysWhereTheNameStands) {
  const Options options = Options::parse("topology: {name: rong}");
  const std::string what = refusal("rong", {.size = 4}, options.section("topology"));
  EXPECT_CONTAINS(what, "topology.name: there is no topology rong");
}

TEST(MakeTopology, NamesTheNearestSizes) {
  const std::string pairs = refusal("one-peer-exp", {.size = 6});
  EXPECT_CONTAINS(pairs, "powers of two");
  EXPECT_CONTAINS(pairs, "4 and 8");
  EXPECT_CONTAINS(pairs, "complete, ring, base-k, ");
  const std::string nodes = refusal("alternating-exp-ring", {.size = 12, .node_size = 4});
  EXPECT_CONTAINS(nodes, "12 ranks with 4 on each node");
  EXPECT_CONTAINS(nodes, "8 and 16");
}

TEST(MakeTopology, RefusesNodesOfUnequalSize) {
  const std::string what = refusal("alternating-exp-ring", {.size = 6, .node_size = 4});
  EXPECT_CONTAINS(what, "equally many ranks");
  EXPECT_CONTAINS(what, "4 and 8");
}

TEST(MakeTopology, RefusesAWorldWithoutRanks) {
  EXPECT_CONTAINS(refusal("ring", {.size = 0}), "at least one");
  EXPECT_CONTAINS(refusal("ring", {.size = 4, .node_size = 0}), "at least one");
}

class ImpossibleWorld : public TopologyTest {};
INSTANTIATE_TEST_SUITE_P(Topologies, ImpossibleWorld, testing::ValuesIn(topologies_to_test()),
                         test_name);

TEST_P(ImpossibleWorld, IsRefusedWithAWayOut) {
  for_each_case(false, [](const TopologyCase& c) {
    const auto& [name, world] = c;
    const std::string what = refusal(name, world);
    EXPECT_CONTAINS(what, concat(name, " cannot be built for ", world.size, " ranks"));
    std::vector<std::string_view> fitting;
    for (const TopologyEntry& entry : topology_table()) {
      if (entry.name == name) {
        EXPECT_CONTAINS(what, concat("It works for ", entry.sizes));
      }
      if (entry.fits(world) && !entry.needs_options) fitting.push_back(entry.name);
    }
    EXPECT_TRUE(what.ends_with(concat("that fit this world: ", join(fitting, ", "), "."))) << what;
  });
}

}  // namespace
}  // namespace gossamer

#include "topology/topology_file.hpp"

#include "test/base/folder.hpp"
#include "test/base/thrown.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "topology/graph.hpp"
#include "topology/registry.hpp"
#include "topology/verify.hpp"

namespace gossamer::topology_file_test {
namespace {

class TopologyFileTest : public testing::Test {
 protected:
  [[nodiscard]] std::string write(const std::string& text) const {
    const std::string path = folder_.file("topology.yaml");
    std::ofstream(path) << text;
    return path;
  }
  [[nodiscard]] std::unique_ptr<Topology> build(const std::string& text, int size) const {
    return make_topology("from-file", {.size = size}, Options::parse("path: " + write(text)));
  }
  [[nodiscard]] std::string refusal(const std::string& text, int size = 3) const {
    return what_of<ConfigError>([&] { (void)build(text, size); });
  }

 private:
  Folder folder_;
};

TEST_F(TopologyFileTest, ReadsAGraph) {
  const auto path = build("world_size: 3\nedges: [[0, 1], [1, 2], [2, 1]]\n", 3);
  EXPECT_FALSE(path->directed());
  EXPECT_EQ(path->period(), 1);
  EXPECT_EQ(path->round(3), metropolis_round({{0, 1}, {1, 2}}, 3));
}

TEST_F(TopologyFileTest, RefusesAGraphThatIsNotConnected) {
  const std::string what = refusal("world_size: 3\nedges: [[0, 1]]\n");
  EXPECT_CONTAINS(what, "Nothing that rank 0 knows ever reaches rank 2");
}

TEST_F(TopologyFileTest, ReadsADirectedGraph) {
  const std::string text = R"({"world_size": 3, "directed": true,
    "edges": [[0, 1], [0, 2], [1, 2], [2, 0]]})";
  const auto graph = build(text, 3);
  EXPECT_TRUE(graph->directed());
  EXPECT_EQ(graph->round(0), directed_round({{0, 1}, {0, 2}, {1, 2}, {2, 0}}, 3));
}

TEST_F(TopologyFileTest, ReadsRounds) {
  const auto topology = build(R"(
world_size: 5
rounds:
  - edges: [[3, 0, 1], {ranks: [2, 4], weight: 0.7}]
  - arcs:
      - {from: 0, to: 1, weight: 0.25}
      - [1, 0, 0.25]
    edges: [[2, 3]]
  - edges: [{ranks: [4, 0]}]
)",
                              5);
  ASSERT_EQ(topology->period(), 3);
  Edge pair = averaging_edge({2, 4});
  pair.weight = 0.7;
  EXPECT_EQ(topology->round(0), complete_round({averaging_edge({0, 1, 3}), pair}, 5));
  EXPECT_EQ(topology->round(1),
            complete_round({averaging_edge({2, 3})}, 5,
                           {{0, 0, 0.75}, {1, 0, 0.25}, {0, 1, 0.25}, {1, 1, 0.75}}));
  EXPECT_EQ(topology->round(5), complete_round({averaging_edge({0, 4})}, 5));
}

TEST_F(TopologyFileTest, SaysWhichRuleIsBrokenByWhomAndWhen) {
  const std::string rounds = "world_size: 3\nrounds: [{edges: [[0, 1, 2]]}, ";
  EXPECT_CONTAINS(refusal(rounds + "{edges: [[0, 1], [1, 2]]}]"),
                  "round 1: Rank 1 stands twice in one round.");
  EXPECT_CONTAINS(refusal(rounds + "{edges: [[0, 3]]}]"), "names rank 3 in a world of 3");
  EXPECT_CONTAINS(refusal(rounds + "{arcs: [[0, 1, 0.5]]}]"),
                  "round 1: Rank 1 hears from rank 0, but rank 0 does not hear from rank 1");
  EXPECT_CONTAINS(refusal(rounds + "{arcs: [[0, 1, 0.5], [1, 0, 0.5], [0, 0, 0.6]]}]"),
                  "round 1: What rank 0 keeps and gives away sums to 1.1, not to 1.");
  EXPECT_CONTAINS(refusal(rounds + "{arcs: [[0, 1, 0.7], [0, 2, 0.7], [1, 0, 0.7]], "
                                   "directed: true}]"),
                  "sums to 1.4, not to 1.");
  EXPECT_CONTAINS(refusal(rounds + "{edges: [{ranks: [0, 1], weight: 1.5}]}]"),
                  "is 1.5, outside [0, 1]");
}

TEST_F(TopologyFileTest, RefusesWhatItDoesNotUnderstand) {
  const auto says = [this](const std::string& text, std::string_view part) {
    const std::string what = refusal(text);
    EXPECT_CONTAINS(what, part) << text << " gave: " << what;
  };
  says("world_size: 3\n", "either `edges` or `rounds`");
  says("world_size: 3\nedges: []\nrounds: []\n", "either `edges` or `rounds`");
  says("world_size: 3\nrounds: []\n", "rounds: is empty");
  says("world_size: 3\nrouns: []\n", "did you mean rounds?");
  says("world_size: 0\nedges: []\n", "world_size: 0 is out of range");
  says("world_size: 2000000\nedges: []\n", "world_size: 2000000 is out of range");
  says("world_size: three\nedges: []\n", "world_size: is no rank");
  says("edges: []\n", "world_size: is missing");
  says("world_size: 3\nedges: [[0, 1, 2]]\n", "an edge of a graph has two ends");
  says("world_size: 3\nedges: [[0, 3]]\n", "there is no rank 3, allowed: 0 to 2");
  says("world_size: 3\nedges: 5\n", "edges: is no list");
  says("world_size: 3\nrounds: [{arcs: [[0, 1]]}]\n", "an arc is [from, to, weight]");
  says("world_size: 3\nrounds: [{arcs: [[0, 1, x]]}]\n", "weight: is no weight");
  says("world_size: 3\nrounds: [{arcs: [[0, 1, .nan]]}]\n", "weight: is no weight");
  says("world_size: 3\nrounds: [{edges: [[]]}]\n", "ranks: is empty");
  says("world_size: 3\nrounds: [[0, 1]]\n", "is no mapping");
  says("world_size: 3\ndirected: maybe\nedges: []\n", "directed: is no flag");
  says("world_size: 4\nedges: [[0, 1], [1, 2], [2, 3]]\n", "is for 4 ranks, this world has 3");
  says("[1, 2]\n", "is no mapping");
}

TEST_F(TopologyFileTest, RefusesFilesThatAreTooLargeOrNotThere) {
  const std::string path = write("");
  std::filesystem::resize_file(path, std::uintmax_t{1} << 30);
  const std::string what = what_of<ConfigError>([&] { (void)read_topology_file(path); });
  EXPECT_CONTAINS(what, "has 1.1 GB, allowed: topology files of up to 16.8 MB");
  EXPECT_THROW((void)read_topology_file("/nowhere/at/all.yaml"), ConfigError);
}

TEST_F(TopologyFileTest, TakesTextsFromElsewhere) {
  const std::string text = R"({"world_size": 2, "rounds": [{"edges": [[0, 1]]}]})";
  TopologyFile given = read_topology_text(text, "Pairs");
  given.name = "Pairs";
  const Options options = Options::parse("rounds: given");
  EXPECT_EQ(what_of<ConfigError>(
                [&] { (void)checked_topology(given, "Pairs", {.size = 3}, options, "rounds"); }),
            "options:1:10: rounds: Pairs is for 2 ranks, this world has 3");
  const auto pairs = checked_topology(given, "Pairs", {.size = 2}, options, "rounds");
  EXPECT_EQ(pairs->name(), "Pairs");
  EXPECT_EQ(pairs->round(0), complete_round({averaging_edge({0, 1})}, 2));
  EXPECT_CONTAINS(what_of<ConfigError>([] { (void)read_topology_text("[1", "Pairs"); }),
                  "Pairs:1:");
}

}  // namespace
}  // namespace gossamer::topology_file_test

// Parity with decent-dp 0.2.3: its rounds, recorded for 1 to 16 ranks.

#include "test/golden/golden_folder.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "topology/registry.hpp"

namespace gossamer::golden_edges_test {
namespace {

std::optional<nlohmann::json> read_golden() {
  std::ifstream file(golden_folder() / "topology_edges.json");
  if (!file) return std::nullopt;
  return nlohmann::json::parse(file);
}

/// `alternating-exp-ring/local=2` in a world of 8.
std::pair<std::string, World> parse_key(const std::string& key, int size) {
  constexpr std::string_view kMark = "/local=";
  const std::size_t mark = key.find(kMark);
  if (mark == std::string::npos) return {key, {.size = size}};
  const int local = std::stoi(key.substr(mark + kMark.size()));
  return {key.substr(0, mark), {.size = size, .node_size = local}};
}

using EdgeSet = std::set<std::vector<int>>;

void expect_round(const Round& round, const nlohmann::json& expected, const std::string& what) {
  EdgeSet ours;
  EdgeSet theirs;
  for (const Edge& edge : round.edges) ours.insert(edge.ranks);
  for (const auto& edge : expected) {
    const auto ranks = edge.at("ranks").get<std::vector<int>>();
    theirs.insert(ranks);
    EXPECT_DOUBLE_EQ(round.edge_of(ranks.front()).weight, edge.at("weight").get<double>()) << what;
  }
  EXPECT_EQ(ours, theirs) << what;
}

void expect_parity(const Topology& topology, const nlohmann::json& record,
                   const std::string& what) {
  const auto& steps = record.at("steps");
  ASSERT_EQ(topology.period(), record.at("period").get<std::int64_t>()) << what;
  ASSERT_EQ(topology.period(), static_cast<std::int64_t>(steps.size())) << what;
  for (std::size_t k = 0; k < steps.size(); ++k) {
    expect_round(topology.round(static_cast<std::int64_t>(k)), steps[k],
                 what + ", round " + std::to_string(k));
  }
}

TEST(GoldenEdges, AreOursWhereDecentDpHasAny) {
  const auto golden = read_golden();
  if (!golden) {
    GTEST_SKIP() << "There is no golden/topology_edges.json; GOSSAMER_SHARED names its folder.";
  }
  int compared = 0;
  for (const auto& [size, topologies] : golden->items()) {
    for (const auto& [key, record] : topologies.items()) {
      // Where decent-dp fails, gossamer goes its own way; the other tests cover that.
      if (record.contains("error") || record.contains("unusable")) continue;
      const auto [name, world] = parse_key(key, std::stoi(size));
      expect_parity(*make_topology(name, world), record, key + " of " + size + " ranks");
      ++compared;
    }
  }
  // An empty or differently laid out file must not pass.
  EXPECT_GE(compared, 30);
}

TEST(GoldenEdges, HaveTopologiesOfTheSameNames) {
  const auto golden = read_golden();
  if (!golden) {
    GTEST_SKIP() << "There is no golden/topology_edges.json; GOSSAMER_SHARED names its folder.";
  }
  std::set<std::string> theirs;
  for (const auto& [key, record] : golden->at("4").items()) theirs.insert(parse_key(key, 4).first);
  const std::vector<std::string> ours = topology_names();
  for (const std::string& name : theirs) {
    EXPECT_NE(std::find(ours.begin(), ours.end(), name), ours.end()) << name;
  }
}

}  // namespace
}  // namespace gossamer::golden_edges_test

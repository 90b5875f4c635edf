#include "apps/records/topology_report.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

std::unique_ptr<Topology> build(const std::string& yaml, const World& world) {
  return read_topology(Options::parse(yaml), world);
}

nlohmann::ordered_json report_of(const std::string& yaml, const World& world,
                                 std::optional<std::int64_t> max_rounds = std::nullopt) {
  const auto topology = build(yaml, world);
  std::ostringstream out;
  write_json(out, *topology, world, topology_figures(*topology, world.size, 1000), max_rounds);
  return nlohmann::ordered_json::parse(out.str());
}

TEST(TopologyReport, HasTheFieldsOfItsContract) {
  const auto report = report_of("name: ring", {.size = 5, .node_size = 5});
  std::vector<std::string> fields;
  for (const auto& [key, value] : report.items()) fields.push_back(key);
  EXPECT_EQ(fields,
            (std::vector<std::string>{"name", "world_size", "local_world_size", "period", "rounds",
                                      "spectral_gap", "exact_after", "directed", "consensus_rate",
                                      "rounds_to_1e-3", "rounds_to_1e-3_estimated", "degree",
                                      "model_bytes", "bytes_per_step", "max_bytes_per_step"}));
  EXPECT_EQ(report["name"], "ring");
  EXPECT_EQ(report["world_size"], 5);
  EXPECT_EQ(report["local_world_size"], 5);
  EXPECT_EQ(report["period"], 5);
  ASSERT_EQ(report["rounds"].size(), 5U);
  EXPECT_EQ(report["rounds"][0].dump(),
            R"({"edges":[{"ranks":[0,1],"weight":0.5},{"ranks":[2,3],"weight":0.5},)"
            R"({"ranks":[4],"weight":1.0}]})");
  EXPECT_GT(report["spectral_gap"].get<double>(), 0.0);
  EXPECT_LT(report["spectral_gap"].get<double>(), 1.0);
  EXPECT_TRUE(report["exact_after"].is_null());
  // One of five ranks rests in every round.
  EXPECT_EQ(report["bytes_per_step"], 800.0);
  EXPECT_EQ(report["max_bytes_per_step"], 1000.0);
  EXPECT_EQ(report["degree"], 1);

  const auto exact = report_of("name: one-peer-exp", {.size = 4, .node_size = 2});
  EXPECT_EQ(exact["exact_after"], 2);
  EXPECT_EQ(exact["local_world_size"], 2);
  EXPECT_NEAR(exact["spectral_gap"].get<double>(), 1.0, 1e-12);
  EXPECT_EQ(exact["rounds_to_1e-3"], 2);
}

TEST(TopologyReport, WritesGeneralRoundsAsArcs) {
  const auto report = report_of("name: directed-one-peer-exp", {.size = 3});
  EXPECT_EQ(report["directed"], true);
  EXPECT_EQ(report["rounds"][0].dump(),
            R"({"arcs":[{"from":0,"to":0,"weight":0.5},{"from":2,"to":0,"weight":0.5},)"
            R"({"from":0,"to":1,"weight":0.5},{"from":1,"to":1,"weight":0.5},)"
            R"({"from":1,"to":2,"weight":0.5},{"from":2,"to":2,"weight":0.5}],"directed":true})");
  const auto nodes = report_of("name: hierarchical", {.size = 4, .node_size = 2});
  EXPECT_EQ(nodes["rounds"][0].dump(), R"({"edges":[{"ranks":[0,1,2,3],"weight":0.25}]})");
  const auto random = report_of("name: random-matching", {.size = 4});
  EXPECT_EQ(random["rounds"].size(), 8U);
  EXPECT_TRUE(random["period"].is_null());
}

TEST(TopologyReport, WritesNoMoreRoundsThanAskedFor) {
  EXPECT_EQ(report_of("name: star", {.size = 40}, 3)["rounds"].size(), 3U);
  EXPECT_EQ(report_of("name: star", {.size = 4}, 30)["rounds"].size(), 3U);
  const auto ring = build("name: ring", {.size = 100'001});
  std::ostringstream out;
  EXPECT_THROW(write_json(out, *ring, {.size = 100'001}, {}, std::nullopt), ConfigError);
  EXPECT_NO_THROW(write_json(out, *ring, {.size = 100'001}, {}, 1));
}

TEST(TopologyReport, DescribesRoundsForPeople) {
  const World world{.size = 3, .node_size = 3};
  EXPECT_EQ(describe_rounds(*build("name: ring", world)),
            "  round 0: 0-1 (2)\n  round 1: (0) 1-2\n  round 2: 0-2 (1)\n");
  EXPECT_EQ(describe_rounds(*build("name: ring", world), 1),
            "  round 0: 0-1 (2)\n  ... and 2 more\n");
  EXPECT_EQ(describe_rounds(*build("name: complete", world)), "  round 0: 0-1-2\n");
  EXPECT_EQ(describe_rounds(*build("name: static-ring", world)), "  round 0: 0=1 0=2 1=2\n");
  EXPECT_EQ(describe_rounds(*build("name: directed-one-peer-exp", world), 1),
            "  round 0: 2>0 0>1 1>2\n  ... and 1 more\n");
  EXPECT_EQ(
      describe_rounds(*build("name: hierarchical, leaders: complete", {.size = 4, .node_size = 2})),
      "  round 0: nodes of 2: 0-1\n");
}

TEST(TopologyReport, DescribesFiguresForPeople) {
  const auto say = [](const std::string& yaml, int size) {
    const auto topology = build(yaml, {.size = size});
    return describe_figures(topology_figures(*topology, size, 2'000'000));
  };
  const std::string exact = say("name: base-k", 6);
  EXPECT_NE(exact.find("all ranks have the exact mean after 4 rounds"), std::string::npos) << exact;
  EXPECT_NE(exact.find("to a thousandth after 4 rounds\n"), std::string::npos) << exact;
  const std::string complete = say("name: complete", 4);
  EXPECT_NE(complete.find("all ranks have the exact mean after 1 round\n"), std::string::npos)
      << complete;
  EXPECT_NE(complete.find("to a thousandth after 1 round\n"), std::string::npos) << complete;
  const std::string ring = say("name: ring", 8);
  EXPECT_NE(ring.find("shrinks to 0.707107 of itself per round"), std::string::npos) << ring;
  EXPECT_NE(ring.find("a rank sends 2.0 MB of a model of 2.0 MB"), std::string::npos) << ring;
  EXPECT_NE(say("name: random-matching", 8).find("the rounds never repeat"), std::string::npos);
}

}  // namespace
}  // namespace gossamer::apps

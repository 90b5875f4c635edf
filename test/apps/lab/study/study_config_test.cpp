// A study's file: the runs it stands for, and what is refused.

#include "apps/lab/study/study_config.hpp"

#include "test/base/thrown.hpp"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/options.hpp"
#include "base/text.hpp"
#include "core/algorithms/algorithm.hpp"

namespace gossamer::apps {
namespace {

StudyConfig read(const std::string& yaml) {
  return read_study_config(parse_yaml(yaml, "study.yaml"), "some/where/study.yaml");
}

std::string refused_study(const std::string& yaml) {
  return what_of<ConfigError>([&] { static_cast<void>(read(yaml)); });
}

/// A study that is fine, with `more` lines in its section.
std::string study_with(const std::string& more, const std::string& base = "") {
  return concat("base: {", base, "}\nstudy:\n  workers: 4\n  topologies: [ring]\n",
                "  optimizers: [adamw]\n", more);
}

/// What stands under a dotted path; `(none)` when nothing does.
std::string value_at(const YamlNode& tree, const std::string& path) {
  const std::size_t dot = path.find('.');
  const YamlNode* node = tree.find(path.substr(0, dot));
  if (node == nullptr) return "(none)";
  if (dot != std::string::npos) return value_at(*node, path.substr(dot + 1));
  return node->kind == YamlNode::Kind::kNull ? "null" : node->scalar;
}

TEST(StudyConfig, StandsForEveryCombination) {
  const StudyConfig config = read(
      "base:\n"
      "  model: {name: cnn}\n"
      "study:\n"
      "  workers: 8\n"
      "  steps: 30\n"
      "  topologies: [allreduce, ring, {name: base-k, k: 3}]\n"
      "  optimizers: [adamw, accum_adamw]\n"
      "  seeds: [5, 7]\n"
      "  dirichlet_alpha: [null, 0.5]\n");
  EXPECT_EQ(config.workers, 8);
  EXPECT_EQ(config.output_dir, "runs/study");
  ASSERT_EQ(config.runs.size(), 3U * 2 * 2 * 2);
  std::set<std::string> names;
  for (const StudyRun& run : config.runs) {
    names.insert(run.name);
    EXPECT_EQ(value_at(run.tree, "model.name"), "cnn");
    EXPECT_EQ(value_at(run.tree, "run.steps"), "30");
    EXPECT_EQ(value_at(run.tree, "run.seed"), std::to_string(run.seed));
    EXPECT_EQ(value_at(run.tree, "run.output_dir"), "runs/study/" + run.name);
  }
  EXPECT_EQ(names.size(), config.runs.size());
  // The last list changes fastest, and seeds slowest.
  EXPECT_EQ(config.runs[0].name, "allreduce__adamw__even__seed5");
  EXPECT_EQ(config.runs[1].name, "allreduce__accum_adamw__even__seed5");
  EXPECT_EQ(config.runs[2].name, "ring__adamw__even__seed5");
  EXPECT_EQ(config.runs[6].name, "allreduce__adamw__alpha0.5__seed5");
  EXPECT_EQ(config.runs[23].name, "base-k-k-3__accum_adamw__alpha0.5__seed7");
}

TEST(StudyConfig, GivesEveryRunWhatItsItemsSay) {
  const StudyConfig config = read(
      "base:\n"
      "  optimizer: {lr: 0.01, accum_iter: 8}\n"
      "  data: {batch_size: 4}\n"
      "study:\n"
      "  workers: 2\n"
      "  epochs: 3\n"
      "  topologies: [all-reduce, {name: base-k, k: 3}]\n"
      "  optimizers: [accum_adamw, {name: accum_adam, accum_iter: 2, label: two}]\n"
      "  dirichlet_alpha: [0.25]\n");
  ASSERT_EQ(config.runs.size(), 4U);
  const YamlNode& allreduce = config.runs[0].tree;
  EXPECT_EQ(value_at(allreduce, "algorithm"), "allreduce");
  EXPECT_EQ(value_at(allreduce, "topology"), "(none)");
  EXPECT_EQ(value_at(allreduce, "optimizer.name"), "accum_adamw");
  EXPECT_EQ(value_at(allreduce, "optimizer.accum_iter"), "8");
  const YamlNode& base_k = config.runs[3].tree;
  EXPECT_EQ(value_at(base_k, "algorithm"), "gossip");
  EXPECT_EQ(value_at(base_k, "topology.name"), "base-k");
  EXPECT_EQ(value_at(base_k, "topology.k"), "3");
  EXPECT_EQ(value_at(base_k, "optimizer.name"), "accum_adam");
  EXPECT_EQ(value_at(base_k, "optimizer.accum_iter"), "2");
  EXPECT_EQ(value_at(base_k, "optimizer.lr"), "0.01");
  EXPECT_EQ(value_at(base_k, "optimizer.label"), "(none)");
  EXPECT_EQ(value_at(base_k, "data.batch_size"), "4");
  EXPECT_EQ(value_at(base_k, "data.dirichlet_alpha"), "0.25");
  EXPECT_EQ(value_at(base_k, "run.epochs"), "3");
  EXPECT_EQ(config.runs[3].optimizer, "two");
  EXPECT_EQ(config.runs[3].name, "base-k-k-3__two__alpha0.25__seed1");
}

TEST(StudyConfig, CombinesCodecsWithTheAlgorithmsThatTakeThem) {
  const StudyConfig config = read(
      "study:\n"
      "  workers: 2\n"
      "  topologies: [ring]\n"
      "  algorithms: [gossip, local, allreduce, {name: outer, kind: noloco}, {name: outer, lr: "
      "2}]\n"
      "  codecs: [fp32, int8, topk]\n"
      "  optimizers: [sgd]\n");
  std::vector<std::pair<std::string, std::string>> found;
  for (const StudyRun& run : config.runs) {
    found.emplace_back(run.topology, value_at(run.tree, "comm.codec"));
  }
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"gossip-on-ring", "fp32"},
      {"gossip-on-ring-int8", "int8"},
      {"outer-kind-noloco-on-ring", "fp32"},
      {"outer-kind-noloco-on-ring-int8", "int8"},
      {"local", "(none)"},
      {"allreduce", "fp32"},
      {"allreduce-int8", "int8"},
      {"outer-lr-2", "fp32"},
      {"outer-lr-2-int8", "int8"},
      {"outer-lr-2-topk", "topk"},
  };
  EXPECT_EQ(found, expected);
  EXPECT_TRUE(contains(refused_study(study_with("  codecs: [topk]\n")),
                       "no codec of the list goes with the algorithm"));
  EXPECT_EQ(refused_study(study_with("  codecs: [int8]\n", "comm: {codec: bf16}")),
            "study.yaml:1:22: base.comm.codec: is what the study sets, allowed: study.codecs");
}

TEST(StudyConfig, TakesTopologiesMadeOfOthers) {
  const StudyConfig config = read(
      "study:\n  workers: 2\n  topologies: [{every: {base: ring, period: 4}}]\n"
      "  optimizers: [sgd]\n");
  ASSERT_EQ(config.runs.size(), 1U);
  EXPECT_EQ(config.runs[0].topology, "every-base-ring-period-4");
  EXPECT_EQ(value_at(config.runs[0].tree, "topology.every.period"), "4");
}

TEST(StudyConfig, RefusesNumbersOfWorkersBeyondOneMachine) {
  for (const std::string workers : {"0", "-1", "33"}) {
    EXPECT_EQ(
        refused_study("study: {workers: " + workers + ", topologies: [ring], optimizers: [sgd]}\n"),
        "study.yaml:1:18: study.workers: " + workers +
            " is out of range, allowed: an integer from 1 to 32");
  }
  EXPECT_NE(
      refused_study("study: {topologies: [ring], optimizers: [sgd]}\n").find("workers: is missing"),
      std::string::npos);
}

TEST(StudyConfig, RefusesUnknownKeysAtTheirPlace) {
  EXPECT_EQ(refused_study(study_with("  seed: [1]\n")),
            "study.yaml:6:3: study.seed: unknown key (did you mean seeds?), allowed: workers, "
            "steps, epochs, topologies, algorithms, codecs, optimizers, seeds, dirichlet_alpha, "
            "output_dir");
  EXPECT_EQ(refused_study("bas: {}\n"),
            "study.yaml:1:1: bas: unknown key (did you mean base?), allowed: base, study");
}

TEST(StudyConfig, RefusesInTheBaseWhatTheStudySets) {
  EXPECT_EQ(refused_study(study_with("", "data: {dirichlet_alpha: 1}")),
            "study.yaml:1:32: base.data.dirichlet_alpha: is what the study sets, allowed: "
            "study.dirichlet_alpha");
  for (const std::string base :
       {"algorithm: local", "topology: {name: ring}", "optimizer: {name: sgd}", "run: {seed: 1}",
        "run: {steps: 1}", "run: {epochs: 1}", "run: {output_dir: x}"}) {
    EXPECT_NE(refused_study(study_with("", base)).find("is what the study sets"), std::string::npos)
        << base;
  }
}

TEST(StudyConfig, RefusesSectionsOfTheBaseThatAreNone) {
  for (const std::string section : {"run", "data", "optimizer"}) {
    EXPECT_EQ(refused_study(concat("base:\n  ", section, ": 3\n")),
              concat("study.yaml:2:", section.size() + 5, ": base.", section,
                     ": is no section, allowed: a section of key: value lines"));
    EXPECT_EQ(read(study_with("", section + ": null")).runs.size(), 1U);
  }
  EXPECT_NE(refused_study("base: 3\n").find("base: is text"), std::string::npos);
}

TEST(StudyConfig, RefusesListsThatAreNone) {
  const auto expect = [](const std::string& yaml, const std::string& start) {
    EXPECT_EQ(refused_study(yaml).substr(0, start.size()), start) << yaml;
    EXPECT_NE(refused_study(yaml).find("allowed: "), std::string::npos) << yaml;
  };
  expect(study_with("  seeds: 3\n"), "study.yaml:6:10: study.seeds: is no list");
  expect(study_with("  seeds: []\n"), "study.yaml:6:10: study.seeds: is no list");
  expect(study_with("  seeds: [1, -2]\n"), "study.yaml:6:14: study.seeds[1]: -2 is out of range");
  expect(study_with("  seeds: [1, 2, 1]\n"),
         "study.yaml:6:17: study.seeds[2]: is called 1 like the item at study.yaml:6:11");
  expect(study_with("  dirichlet_alpha: [0]\n"),
         "study.yaml:6:21: study.dirichlet_alpha[0]: 0 is out of range");
  expect(study_with("  dirichlet_alpha: [null, ~]\n"), "study.yaml:6:27: study.dirichlet_alpha[1]");
  expect("study: {workers: 1, optimizers: [sgd]}\n",
         "study.yaml:1:8: study.topologies: is missing");
  expect("study: {workers: 1, optimizers: [sgd], topologies: [[ring]]}\n",
         "study.yaml:1:53: study.topologies[0]: is neither");
  expect("study: {workers: 1, optimizers: [sgd], topologies: [ring, RING]}\n",
         "study.yaml:1:59: study.topologies[1]: is called RING like the item at study.yaml:1:53");
  expect("study: {workers: 1, optimizers: [sgd], topologies: [{name: ring, label: a/b}]}\n",
         "study.yaml:1:73: study.topologies[0].label: is part of a folder's name");
  expect("study: 3\n", "study.yaml:1:8: study: is text");
  expect(study_with("  output_dir: ''\n"), "study.yaml:6:15: study.output_dir: is empty");
}

TEST(StudyConfig, RunsEveryAlgorithmOnTheTopologiesThatItNeeds) {
  const StudyConfig study = read(
      "study:\n  workers: 4\n  topologies: [ring, complete]\n  optimizers: [sgd]\n"
      "  algorithms: [gossip, gradient_tracking, {name: outer, every: 5, label: slowmo}]\n");
  std::vector<std::string> labels;
  for (const StudyRun& run : study.runs) labels.push_back(run.topology);
  EXPECT_EQ(labels, (std::vector<std::string>{"gossip-on-ring", "gradient_tracking-on-ring",
                                              "gossip-on-complete", "gradient_tracking-on-complete",
                                              "slowmo"}));
  const Options last(study.runs.back().tree);
  EXPECT_EQ(read_algorithm(last).name(), "outer");
}

}  // namespace
}  // namespace gossamer::apps

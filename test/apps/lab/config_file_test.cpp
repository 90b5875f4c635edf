// Whole configuration files: structure, overrides, unknown keys, the files in configs/.

#include "test/apps/train/config_text.hpp"
#include "test/base/thrown.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "apps/commands/list.hpp"
#include "apps/commands/reference.hpp"
#include "apps/lab/plan/links.hpp"
#include "apps/lab/simulate/simulation.hpp"
#include "apps/lab/study/study_config.hpp"
#include "apps/train/run_config.hpp"
#include "apps/train/sections.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "core/algorithms/algorithm.hpp"

namespace gossamer::apps {
namespace {

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

TEST(ConfigFile, RefusesUnknownKeysWithASuggestion) {
  EXPECT_EQ(refusal("log:\n  evry: 3\n"),
            "conf.yaml:2:3: log.evry: unknown key (did you mean every?), allowed: level, "
            "progress, every, consensus_every, eval_every, tensorboard, timeline, "
            "timeline_steps, report");
  expect_parts(refusal("optimizr:\n  lr: 1\n"),
               {"conf.yaml:1:1: optimizr: unknown key (did you mean optimizer?), allowed: run, "});
  expect_parts(refusal("seed: 3\n"),
               {"conf.yaml:1:1: seed: unknown key", "allowed: run, device, model"});
  expect_parts(refusal("", {"optimizer.learning_rate=1"}),
               {"command line: optimizer.learning_rate: unknown key", "allowed: name, lr"});
  expect_parts(refusal("", {"zzz=1"}), {"command line: zzz: unknown key, allowed: "});
}

TEST(ConfigFile, RefusesKeysOfAnotherPlugIn) {
  expect_parts(refusal("model:\n  name: cnn\n  hidden: 3\n"), {"conf.yaml:3:3: model.hidden: "});
  expect_parts(refusal("optimizer: {name: sgd, betas: [0, 0]}\n"), {"optimizer.betas: unknown"});
  expect_parts(refusal("lr_schedule:\n  t_max: 3\n"), {"lr_schedule.t_max: unknown key"});
  expect_parts(refusal("data:\n  path: x\n"), {"data.path: unknown key"});
  expect_parts(refusal("data:\n  name: idx\n"), {"conf.yaml:2:3: data.path: is missing"});
  expect_parts(refusal("data: {name: idx, path: x, train_size: 3}\n"), {"data.train_size"});
}

TEST(ConfigFile, RefusesBrokenStructure) {
  expect_parts(refusal("run:\n  <<: 3\n"), {"conf.yaml:2:3: run.<<: unknown key"});
  expect_parts(refusal("- a\n"), {"conf.yaml:1:1: the file holds a list"});
  expect_parts(refusal("run: 3\n"), {"conf.yaml:1:6: run: is text, allowed: a section"});
  expect_parts(refusal("optimizer: [lr]\n"), {"conf.yaml:1:12: optimizer: is a list"});
}

TEST(ConfigFile, LetsStepsWinOverEpochs) {
  // So that a file that counts in epochs can be shortened on the command line.
  const RunConfig config = read_text("run:\n  epochs: 4\n", {"run.steps=3"});
  EXPECT_EQ(config.steps, 3);
  EXPECT_EQ(config.epochs, 4);
  EXPECT_FALSE(read_text("run:\n  epochs: 4\n  steps: 3\n", {"run.steps=null"}).steps);
}

TEST(ConfigFile, PointsIntoLists) {
  EXPECT_EQ(refusal("optimizer:\n  betas: [0.9, 1.0]\n"),
            "conf.yaml:2:16: optimizer.betas: 1.0 is out of range, allowed: a number >= 0 and < 1");
  EXPECT_EQ(refusal("data:\n  name: idx\n  path: x\n  train_range: [0, b]\n"),
            "conf.yaml:4:20: data.train_range: b is not an integer, allowed: an integer >= 0");
  expect_parts(refusal("data: {name: idx, path: x, val_range: [5, 5]}\n"),
               {"data.val_range: holds nothing", "0 <= first < last"});
  expect_parts(refusal("data: {name: idx, path: x, val_range: [5]}\n"), {"data.val_range: is "});
  expect_parts(refusal("data: {name: idx, path: x, val_range: [-5, 5]}\n"),
               {"data.val_range: -5 is out of range"});
  const RunConfig config = read_text("data: {name: idx, path: x, train_range: [0, 5]}\n");
  EXPECT_EQ(resolved(config.resolved, "data.train_range"), "[0, 5]");
  EXPECT_EQ(resolved(config.resolved, "data.val_range"), "null");
}

TEST(ConfigFile, RefusesOptimizersThatDoNotSuitTheAlgorithm) {
  const std::string reason =
      "optimizer.name: sgd: the optimizer keeps no second moments, which algorithm.share_moments "
      "needs; take an optimizer of the Adam family, or leave share_moments out";
  const std::string optimizer = "optimizer:\n  name: sgd\n";
  EXPECT_TRUE(contains(refusal("algorithm: {name: gossip, share_momentum: 8}\n"),
                       "diverge; take a multiple of share_moments"));
  EXPECT_TRUE(contains(refusal("optimizer: {name: sgd}\n"
                               "algorithm: {name: gossip, share_momentum: 8}\n"),
                       "the optimizer keeps no momentum"));
  // Those of groups count as well.
  const auto with_group = [](const char* name, const char* of_group, const char* periods) {
    return refusal(concat("optimizer: {name: ", name, ", groups: [{match: w, vectors: true, ",
                          "optimizer: ", of_group, "}]}\nalgorithm: {name: gossip, ", periods,
                          "}\n"));
  };
  EXPECT_TRUE(contains(with_group("muon", "adamw", "share_moments: 16, share_momentum: 24"),
                       "diverge; take a multiple of share_moments"));
  EXPECT_EQ(with_group("muon", "adamw", "share_moments: 8, share_momentum: 24"), "");
  EXPECT_EQ(with_group("sgd", "adamw", "share_moments: 8, share_momentum: 24"), "");
  EXPECT_EQ(refusal(optimizer + "algorithm: {name: gossip, share_moments: 8}\n"),
            "conf.yaml:2:9: " + reason);
  EXPECT_EQ(refusal(optimizer + "algorithm: {phases: [{until: 5, algorithm: allreduce}, "
                                "{algorithm: {name: gossip, share_moments: 8}}]}\n"),
            "conf.yaml:2:9: " + reason);
  expect_parts(refusal(optimizer + "algorithm: {name: allreduce, sends: momentum}\n"),
               {"conf.yaml:2:9: optimizer.name: sgd: algorithm.sends: momentum needs", "qadam"});
}

TEST(ConfigFile, RefusesTopologiesThatDoNotFitTheWorld) {
  const World three{.rank = 0, .size = 3, .node_size = 3};
  const std::string yaml = "topology:\n  name: one-peer-exp\n";
  expect_parts(refusal(yaml, {}, three),
               {"conf.yaml:2:9: topology.name: ", "one-peer-exp", "3", "powers of two", "ring"});
  EXPECT_EQ(refusal(yaml), "");
  // The others do without a topology, so the same file runs on any number of ranks.
  EXPECT_EQ(refusal(yaml + "algorithm: allreduce\n", {}, three), "");
  EXPECT_EQ(refusal(yaml + "algorithm: local\n", {}, three), "");
}

TEST(Overrides, ReplaceWhatTheFileSays) {
  const std::string yaml = "optimizer:\n  name: sgd\n  lr: 0.5\n";
  EXPECT_EQ(read_text(yaml, {"optimizer.lr=0.25"}).lr, 0.25);
  EXPECT_EQ(read_text(yaml, {"optimizer.lr=0.25", "optimizer.lr=0.125"}).lr, 0.125);
  EXPECT_EQ(read_text(yaml, {"optimizer.lr=null"}).lr, 1e-3);
  EXPECT_EQ(read_text("", {"optimizer={name: sgd, lr: 2}"}).lr, 2.0);
  EXPECT_EQ(read_text("", {"run.output_dir=a=b.c"}).output_dir, "a=b.c");
  EXPECT_EQ(read_text("", {"optimizer.betas=[0.5, 0.25]"}).optimizer->num_states(), 3);
  EXPECT_EQ(read_text("run:\n", {"run.steps=3"}).steps, 3);
}

TEST(Overrides, AreRefusedWhenMalformed) {
  for (const char* const text :
       {"optimizer.lr", "=3", "optimizer..lr=3", ".lr=3", "optimizer.=3"}) {
    expect_parts(refusal("", {text}), {"command line: "});
  }
  expect_parts(refusal("", {"optimizer.lr=[1"}), {"command line: optimizer.lr: "});
  expect_parts(refusal("", {"optimizer.lr=3: 4: 5"}), {"command line: optimizer.lr: "});
  expect_parts(refusal("algorithm: allreduce\n", {"algorithm.delay=2"}),
               {"command line: algorithm.delay: 2 is out of range"});
  expect_parts(refusal("", {"optimizer=3"}), {"command line: optimizer: is text"});
}

TEST(LaunchConfig, HoldsWhatIsNeededBeforeAnyRankRuns) {
  const auto read = [](const std::string& yaml) {
    return read_comm_config(Options(parse_yaml(yaml, "conf.yaml"))).launch;
  };
  const LaunchConfig plain = read("");
  EXPECT_EQ(plain.backend, default_backend());
  EXPECT_EQ(plain.options.timeout_s, 300.0);
  EXPECT_EQ(plain.options.node_size, 0);
  EXPECT_EQ(plain.options.log_level, LogLevel::kInfo);
  const LaunchConfig given =
      read("comm: {timeout_s: 2, local_size: 3}\nlog: {level: debug}\nother: {}\n");
  EXPECT_EQ(given.options.timeout_s, 2.0);
  EXPECT_EQ(given.options.node_size, 3);
  EXPECT_EQ(given.options.log_level, LogLevel::kDebug);
  EXPECT_THROW(read("comm: {timeout_s: 0}"), ConfigError);
}

TEST(LaunchConfig, RefusesThreadsUnderMpirun) {
  const char* const earlier = std::getenv("OMPI_COMM_WORLD_RANK");
  const std::string saved = earlier == nullptr ? "" : earlier;
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  const std::string message = refusal("comm:\n  backend: threads\n");
  earlier == nullptr ? unsetenv("OMPI_COMM_WORLD_RANK")
                     : setenv("OMPI_COMM_WORLD_RANK", saved.c_str(), 1);
  expect_parts(message, {"conf.yaml:2:12: comm.backend: ", "mpirun", "--ranks"});
}

TEST(ConfigFile, ReadsTopologiesMadeOfOthers) {
  const RunConfig config = read_text(
      "topology:\n  phases:\n    - {until: 10, topology: complete}\n    - topology:\n"
      "        alternate: [ring, {name: base-k, k: 2}]\n");
  EXPECT_EQ(config.exchange.topology->name(),
            "phases [complete, alternate [ring, base-k] from 10]");
  // What is written into the run's folder reads back as the same run.
  EXPECT_EQ(read_text(to_yaml(config.resolved)).resolved, config.resolved);
  EXPECT_EQ(read_text("", {"topology={alternate: [ring, complete]}"}).exchange.topology->period(),
            4);
  expect_parts(refusal("topology:\n  name: ring\n  colour: 1\n"), {"topology.colour: unknown key"});
  EXPECT_EQ(refusal("algorithm: allreduce\ntopology: {name: base-k, k: 3}\n"), "");
}

// ---------------------------------------------------------------------------------------------
// The files in configs/.

const std::filesystem::path kConfigs = std::filesystem::path(GOSSAMER_SOURCE_DIR) / "configs";

RunConfig read_config(const std::filesystem::path& path,
                      const std::vector<std::string>& overrides = {}) {
  YamlNode tree = read_yaml_file(path.string());
  for (const std::string& text : overrides) apply_override(tree, text);
  return read_run_config(Options(tree), kFourRanks, path.string());
}

TEST(ConfigsFolder, HoldsFilesThatCanBeRead) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kConfigs)) {
    ASSERT_EQ(entry.path().extension(), ".yaml") << entry.path();
    if (entry.path().stem() == "simulate") {
      EXPECT_NO_THROW(read_simulation(Options(read_yaml_file(entry.path().string()))));
      continue;
    }
    if (entry.path().filename().string().starts_with("study_")) continue;
    if (entry.path().filename().string().starts_with("links_")) {
      EXPECT_NO_THROW(read_links(Options(read_yaml_file(entry.path().string()))));
      continue;
    }
    EXPECT_NO_THROW(read_config(entry.path())) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 2);
}

/// A topology of four ranks, for the choices that need a file.
std::string topology_file() {
  const std::string path = testing::TempDir() + "gossamer_config_file_test_topology.yaml";
  std::ofstream(path) << "world_size: 4\nedges: [[0, 1], [1, 2], [2, 3]]\n";
  return path;
}

TEST(ConfigsFolder, HoldsStudysWhoseRunsCanBeRead) {
  for (const std::string name :
       {"study_consensus.yaml", "study_far.yaml", "study_glyphs.yaml", "study_mnist.yaml",
        "study_outer.yaml", "study_text.yaml", "study_uneven.yaml"}) {
    const std::filesystem::path path = kConfigs / name;
    const StudyConfig study = read_study_config(read_yaml_file(path.string()), path.string());
    const World world{.size = study.workers, .node_size = study.workers};
    EXPECT_GE(study.runs.size(), 9U);
    for (const StudyRun& run : study.runs) {
      EXPECT_NO_THROW(read_run_config(Options(run.tree), world, path.string()))
          << name << ": " << run.name;
    }
  }
}

/// Configurations that choose every row of every table once, as overrides.
std::vector<std::vector<std::string>> all_choices() {
  std::vector<std::vector<std::string>> choices;
  const auto add = [&](const std::string& key, const std::vector<std::string>& names) {
    for (const std::string& name : names) choices.push_back({concat(key, "=", name)});
  };
  add("model.name", model_names());
  add("data.name", dataset_names());
  add("topology.name", topology_names());
  add("algorithm.name", algorithm_names());
  add("optimizer.name", optimizer_names());
  add("lr_schedule.name", schedule_names());
  for (auto& choice : choices) {
    if (choice[0] == "topology.name=from-file") {
      choice.push_back("topology.path=" + topology_file());
    }
    if (choice[0] == "algorithm.name=choco") choice.emplace_back("topology.name=static-ring");
    if (choice[0] == "algorithm.name=relay") choice.emplace_back("topology.name=chain");
    if (choice[0] == "algorithm.name=node_gossip") {
      choice.emplace_back("topology.name=hierarchical");
    }
    if (choice[0].starts_with("data.name=") && choice[0] != "data.name=glyphs") {
      choice.emplace_back("data.path=x");
    }
    if (choice[0] == "data.name=text" || choice[0] == "data.name=tokens") {
      choice.emplace_back("model.name=gpt");
    }
    if (choice[0] == "model.name=gpt") {
      choice.insert(choice.end(), {"data.name=text", "data.path=x"});
    }
    if (choice[0] == "model.name=torchscript") choice.emplace_back("model.path=x");
  }
  return choices;
}

/// All keys that `gossamer list` shows, as dotted paths.
std::set<std::string> listed_keys() {
  std::set<std::string> keys;
  for (const SectionEntry& section : section_table()) {
    for (const OptionEntry& option : section.options) {
      const std::string path = concat(section.name, ".", option.name);
      keys.insert(path);
      for (const PlugInRow& row : rows_named_by(path)) {
        for (const OptionEntry& own : row.options) keys.insert(concat(section.name, ".", own.name));
      }
    }
  }
  return keys;
}

TEST(ReferenceConfig, IsWhatTheProgramPrints) {
  std::ostringstream printed;
  print_reference(printed);
  std::ifstream file(kConfigs / "reference.yaml");
  std::ostringstream found;
  found << file.rdbuf();
  EXPECT_EQ(found.str(), printed.str()) << "gossamer list --yaml > configs/reference.yaml";
}

TEST(ReferenceConfig, HoldsTheDefaults) {
  const RunConfig defaults = read_text("");
  const RunConfig reference = read_config(kConfigs / "reference.yaml");
  ASSERT_EQ(reference.resolved.size(), defaults.resolved.size());
  for (const ResolvedValue& value : defaults.resolved) {
    if (value.path == "run.output_dir") continue;
    EXPECT_EQ(resolved(reference.resolved, value.path), value.value) << value.path;
  }
  EXPECT_EQ(reference.output_dir, "runs/reference");
}

TEST(ReferenceConfig, ShowsEveryDefaultAsAValue) {
  std::ostringstream printed;
  print_reference(printed);
  const Options printed_tree(parse_yaml(printed.str(), "printed"));
  for (const ResolvedValue& value : read_text("").resolved) {
    const std::size_t dot = value.path.find('.');
    const std::string key = value.path.substr(dot + 1);
    // Null is as good as absent.
    if (value.value == "null") continue;
    EXPECT_TRUE(printed_tree.section(value.path.substr(0, dot)).has(key)) << value.path;
  }
}

TEST(ReferenceConfig, ShowsValidExamples) {
  for (const SectionEntry& section : section_table()) {
    if (section.example.empty()) continue;
    EXPECT_EQ(refusal("", {concat(section.name, "=", section.example)}), "") << section.name;
  }
  for (const PlugInRow& row : wrapper_rows()) {
    EXPECT_EQ(refusal("", {concat("topology.", row.name, "=", row.example)}), "") << row.name;
  }
}

TEST(Sections, ListTheKeysThatAreRead) {
  const std::set<std::string> listed = listed_keys();
  std::set<std::string> read;
  for (const auto& choice : all_choices()) {
    for (const ResolvedValue& value : read_text("", choice).resolved) {
      std::string path = value.path;
      // `leaders: ring` stands for a section with a name.
      if (path == "topology.leaders.name") path = "topology.leaders";
      if (path == "optimizer.rule.name") path = "optimizer.rule";
      if (path.starts_with("optimizer.rule.")) continue;
      EXPECT_TRUE(listed.contains(path)) << path << " of " << choice[0] << " is not listed";
      read.insert(path);
    }
  }
  for (const std::string& path : listed) {
    const bool is_left_out = path.starts_with("algorithm.phases.") ||
                             path.starts_with("algorithm.consensus_control.") ||
                             path.starts_with("optimizer.groups.");
    EXPECT_TRUE(is_left_out || read.contains(path)) << path << " is a key of nothing";
  }
}

TEST(Sections, OfListsListTheKeysThatAreRead) {
  const auto allowed = [](const std::string& text) {
    return text.substr(text.find("allowed: ") + 9);
  };
  EXPECT_EQ(allowed(refusal("", {"algorithm.phases=[{until: 2, algorithm: local, k: 1}, "
                                 "{algorithm: local}]"})),
            "algorithm, average, until");
  EXPECT_EQ(allowed(refusal("", {"algorithm.consensus_control={target: 1, topology: ring, k: 1}"})),
            "target, hysteresis, every, topology");
  EXPECT_EQ(allowed(refusal("", {"optimizer={name: sgd, groups: [{match: a, k: 1}]}"})),
            "vectors, match, lr, weight_decay, optimizer, momentum, nesterov");
}

TEST(ResolvedConfig, ReadsBackAsItself) {
  for (const auto& choice : all_choices()) {
    const auto values = read_text("", choice).resolved;
    const std::string yaml = to_yaml(values);
    const auto again = read_text(yaml).resolved;
    ASSERT_EQ(again.size(), values.size()) << yaml;
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(again[i].path, values[i].path);
      EXPECT_EQ(again[i].value, values[i].value) << values[i].path;
    }
    EXPECT_EQ(to_yaml(again), yaml);
  }
}

TEST(ResolvedConfig, KeepsOddNamesOfFolders) {
  for (const std::string name : {"a b", "a: b # c", "quote\"d", "back\\slash", "null", "3", "-",
                                 "\xc3\xa4\xe2\x82\xac", "tab\there", "{x}", "  both  ", "'"}) {
    YamlNode tree;
    apply_override(tree, "run.output_dir=x");
    tree.find("run")->find("output_dir")->scalar = name;
    const RunConfig config = read_run_config(Options(tree), kFourRanks, "conf.yaml");
    EXPECT_EQ(read_text(to_yaml(config.resolved)).output_dir, name);
  }
}

}  // namespace
}  // namespace gossamer::apps

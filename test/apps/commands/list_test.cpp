// Options in the tables of plug-ins: what they say is what the factories read.

#include "test/base/thrown.hpp"

#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "apps/data/dataset.hpp"
#include "apps/models/models.hpp"
#include "apps/train/run_config.hpp"
#include "base/error.hpp"
#include "base/registry.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "core/algorithms/algorithm.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

using Values = std::map<std::string, std::string>;

/// A row of a table, and how to have its options read.
struct Plugin {
  std::string_view name;
  std::span<const OptionEntry> options;
  std::function<void(const Options&)> make;
  /// What must be given.
  Values needed = {};
  /// The text around the plug-in's section, and the dotted path of the section.
  std::string before = "";
  std::string after = "";
  std::string prefix = "";
  /// Keys that are read beside the plug-in's own.
  std::set<std::string> shared = {};

  [[nodiscard]] Options section(const Values& values) const {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : values) pairs.push_back(concat(key, ": ", value));
    return Options::parse(concat(before, "{", join(pairs, ", "), "}", after));
  }
  /// The needed values, `key` changed to `value`.
  [[nodiscard]] Values with(std::string_view key, const std::string& value) const {
    Values values = needed;
    values[std::string(key)] = value;
    return values;
  }
};

/// What stands behind `allowed: ` in a message.
std::string allowed(const std::string& message) {
  constexpr std::string_view kMark = "allowed: ";
  const std::size_t at = message.find(kMark);
  return at == std::string::npos ? "" : message.substr(at + kMark.size());
}

std::set<std::string> keys_read(const Plugin& plugin) {
  const Options options = plugin.section(plugin.with("not_an_option", "1"));
  plugin.make(options);
  std::istringstream list(allowed(what_of<ConfigError>([&] { options.reject_unknown(); })));
  std::set<std::string> keys;
  for (std::string key; list >> key;) keys.insert(key.substr(0, key.find(',')));
  return keys;
}

std::string default_of(const Plugin& plugin, std::string_view key) {
  const Options options = plugin.section(plugin.needed);
  plugin.make(options);
  for (const ResolvedValue& value : options.resolved()) {
    const std::string path = concat(plugin.prefix, key);
    if (value.path == path || value.path == path + ".name") return value.value;
  }
  return "(not read)";
}

/// What Options allows for a key, in its words: a list of one is wrong for every type.
std::string allowed_for(const Plugin& plugin, std::string_view key) {
  const Options options = plugin.section(plugin.with(key, "[0]"));
  return allowed(what_of<ConfigError>([&] { plugin.make(options); }));
}

void expect_summary(const Plugin& plugin, const OptionEntry& option) {
  const std::string range = allowed_for(plugin, option.name);
  EXPECT_NE(range, "");
  const auto needed = plugin.needed.find(std::string(option.name));
  if (needed == plugin.needed.end()) {
    const std::string end = concat("; ", range, ", default ", default_of(plugin, option.name));
    // The end of the summary, or an explanation of the default.
    EXPECT_TRUE(contains(concat(option.text(), ":"), end + ":"))
        << option.text() << "\nought to say: " << end;
    return;
  }
  const std::string end = concat("; ", range, ", must be given");
  EXPECT_TRUE(contains(option.text(), end)) << option.text() << "\nought to say: " << end;
  Values others = plugin.needed;
  others.erase(needed->first);
  const Options without = plugin.section(others);
  EXPECT_TRUE(contains(what_of<ConfigError>([&] { plugin.make(without); }), "is missing"));
}

void expect_true_options(const Plugin& plugin) {
  SCOPED_TRACE(plugin.name);
  std::set<std::string> listed = plugin.shared;
  for (const OptionEntry& option : plugin.options) {
    SCOPED_TRACE(option.name);
    EXPECT_TRUE(listed.emplace(option.name).second) << "stands twice";
    expect_summary(plugin, option);
  }
  EXPECT_EQ(keys_read(plugin), listed);
}

TEST(ListedOptions, AreThoseOfTopologies) {
  const World world{.size = 4, .node_size = 2};
  const std::string file = testing::TempDir() + "gossamer_list_test_topology.yaml";
  std::ofstream(file) << "world_size: 4\nedges: [[0, 1], [1, 2], [2, 3]]\n";
  for (const TopologyEntry& entry : topology_table()) {
    Plugin plugin{.name = entry.name, .options = entry.options, .make = [&](const Options& given) {
                    (void)entry.make(world, given, {});
                  }};
    if (entry.needs_options) plugin.needed = {{"path", file}};
    expect_true_options(plugin);
  }
}

TEST(ListedOptions, AreThoseOfAlgorithms) {
  for (const AlgorithmEntry& entry : algorithm_table()) {
    expect_true_options({.name = entry.name,
                         .options = entry.options,
                         .make = [&](const Options& given) { (void)entry.read(given); }});
  }
}

TEST(ListedOptions, AreThoseOfWrappers) {
  std::map<std::string_view, Plugin> plugins;
  for (const WrapperEntry& entry : wrapper_table()) {
    plugins[entry.name] = {
        .name = entry.name, .options = entry.options, .make = [&entry](const Options& given) {
          (void)entry.make({.size = 4}, given, {});
        }};
  }
  ASSERT_EQ(plugins.size(), 3U);
  EXPECT_TRUE(plugins.at("alternate").options.empty());  // a list, which has no keys of its own
  Plugin& every = plugins.at("every");
  every.before = "every: ";
  every.needed = {{"base", "ring"}, {"period", "2"}};
  expect_true_options(every);
  Plugin& phases = plugins.at("phases");
  phases.before = "phases: [";
  phases.after = ", {topology: ring}]";
  phases.needed = {{"topology", "ring"}, {"until", "2"}};
  expect_true_options(phases);
}

TEST(ListedOptions, AreThoseOfOptimizers) {
  for (const OptimizerEntry& entry : optimizer_table()) {
    expect_true_options({.name = entry.name,
                         .options = entry.options,
                         .make = [&](const Options& given) { (void)entry.make(given); }});
  }
}

TEST(ListedOptions, AreThoseOfSchedules) {
  for (const ScheduleEntry& entry : schedule_table()) {
    expect_true_options({.name = entry.name,
                         .options = entry.options,
                         .make = [&](const Options& given) { (void)entry.make({}, given); }});
  }
}

TEST(ListedOptions, AreThoseOfModels) {
  for (const ModelEntry& entry : model_table()) {
    Plugin plugin{.name = entry.name, .options = entry.options, .make = [&](const Options& given) {
                    (void)entry.configure(given);
                  }};
    if (entry.name == "torchscript") plugin.needed = {{"path", "nowhere"}};
    expect_true_options(plugin);
  }
}

TEST(ListedOptions, AreThoseOfDataSets) {
  for (const DatasetEntry& entry : dataset_table()) {
    Plugin plugin{.name = entry.name, .options = entry.options, .make = [&](const Options& given) {
                    (void)entry.configure(given);
                  }};
    // `configure` opens no file.
    if (entry.name != "glyphs") plugin.needed = {{"path", "nowhere"}};
    expect_true_options(plugin);
  }
}

TEST(ListedOptions, AreThoseOfBackends) {
  for (const BackendEntry& entry : backend_table()) {
    expect_true_options({.name = entry.name,
                         .options = entry.options,
                         .make = [](const Options& given) { (void)read_comm_config(given); },
                         .before = "comm: ",
                         .prefix = "comm.",
                         .shared = {"backend", "codec", "interface", "secret_file", "security",
                                    "shared_memory", "streams"}});
  }
}

}  // namespace
}  // namespace gossamer::apps

// gossamer simulate CONFIG.yaml | consensus | sgd

#include <iomanip>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/commands/command_options.hpp"
#include "apps/commands/commands.hpp"
#include "apps/lab/simulate/simulation.hpp"
#include "apps/lab/simulate/simulation_report.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"

namespace gossamer::apps {
namespace {

struct SimulateArguments {
  std::string config;
  /// Settings `key=value`: first those of the options, then those given as they are.
  std::vector<std::string> settings;
  int threads = 0;
  bool json = false;
  PlugIns own;
};

YamlNode tree_of(const SimulateArguments& arguments) {
  YamlNode root = arguments.config.empty()
                      ? YamlNode{.kind = YamlNode::Kind::kMapping, .where = "command line"}
                      : read_yaml_file(arguments.config);
  for (const std::string& setting : arguments.settings) apply_override(root, setting);
  return root;
}

/// A few points, evenly chosen.
std::vector<SimulationPoint> few_of(const std::vector<SimulationPoint>& points) {
  constexpr std::size_t kLines = 16;
  if (points.size() <= kLines) return points;
  std::vector<SimulationPoint> few;
  for (std::size_t i = 0; i < kLines; ++i) {
    few.push_back(points[i * (points.size() - 1) / (kLines - 1)]);
  }
  return few;
}

void print_points(const SimulationConfig& config, const SimulationResult& result) {
  std::cout << std::setw(10) << (config.trains ? "step" : "round") << std::setw(22)
            << "consensus distance";
  if (config.trains) std::cout << std::setw(16) << "excess loss" << std::setw(22) << "to optimum";
  std::cout << "\n" << std::setprecision(4);
  for (const SimulationPoint& point : few_of(result.points)) {
    std::cout << std::setw(10) << point.round << std::setw(22) << point.consensus_distance;
    if (config.trains) {
      std::cout << std::setw(16) << point.excess_loss << std::setw(22) << point.distance_to_optimum;
    }
    std::cout << "\n";
  }
}

void print(const SimulationConfig& config, const SimulationResult& result,
           const std::optional<double>& gap) {
  std::cout << config.topology->name() << ", " << config.world.size << " ranks with " << config.dim
            << " parameters each, " << config.rounds << (config.trains ? " steps\n" : " rounds\n");
  print_points(config, result);
  if (config.trains) {
    std::cout << "over the last quarter: consensus distance " << result.steady.consensus_distance
              << ", excess loss " << result.steady.excess_loss << ", distance to the optimum "
              << result.steady.distance_to_optimum << "\n";
    return;
  }
  if (result.exact_after) {
    std::cout << "the mean on all ranks, to 1e-12, after " << *result.exact_after << " rounds\n";
  }
  if (result.rounds_to_thousandth) {
    std::cout << "to a thousandth after " << *result.rounds_to_thousandth << " rounds\n";
  }
  if (result.measured_factor) {
    std::cout << std::setprecision(8) << "distance from the mean per period: times "
              << *result.measured_factor;
    if (gap) std::cout << "; spectral radius of P - J: " << 1.0 - *gap;
    std::cout << "\n";
  }
  std::cout << std::setprecision(2) << "the mean has moved by " << result.mean_drift << "\n";
}

void run(const SimulateArguments& arguments) {
  const SimulationConfig config = read_simulation(Options(tree_of(arguments)), arguments.own);
  const SimulationResult result = simulate(config, arguments.threads);
  const std::optional<double> gap = gap_of(config);
  if (arguments.json) {
    std::cout << to_json(config, result, gap).dump(2) << "\n";
  } else {
    print(config, result, gap);
  }
}

void add_common(CLI::App& command, const std::shared_ptr<SimulateArguments>& arguments) {
  command.add_option("--threads", arguments->threads, "Threads that share the work; 0: all cores")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  command.add_flag("--json", arguments->json, "As JSON, with all points");
}

void add_kind(CLI::App& parent, const std::string& kind, const std::string& help, int& exit_code,
              const PlugIns& own) {
  const auto arguments = std::make_shared<SimulateArguments>();
  arguments->own = own;
  arguments->settings.push_back("kind=" + kind);
  CLI::App* command = parent.add_subcommand(kind, help);
  const auto add = [&](const std::string& option, const std::string& key,
                       const std::string& about) {
    add_setting(*command, arguments->settings, option, key, about);
  };
  add("--topology", "topology", "Its name, or a section: '{name: base-k, k: 2}'");
  add("--codec", "codec", "What the ranks send in place of their values: see gossamer list codecs");
  add("--world-size", "world_size", "Number of virtual ranks");
  add("--local-world-size", "local_world_size", "Ranks on each node; all of them when not given");
  add("--rounds,--steps", "rounds", "Rounds, or steps");
  add("--dim", "dim", "Parameters of a rank");
  add("--seed", "seed", "Seed of all random numbers");
  if (kind == "sgd") {
    add("--algorithm", "algorithm",
        "Its name, or a section: '{name: outer, every: 10}'; gossip when not given");
    add("--optimizer", "optimizer", "Its name, or a section: '{name: accum_adamw, lr: 0.01}'");
    add("--problem", "problem",
        "quadratic, logistic, or a section: '{name: quadratic, heterogeneity: 2}'");
    command->footer(
        "Example:\n  gossamer simulate sgd --topology ring --world-size 32 --steps 2000 "
        "--problem '{name: quadratic, heterogeneity: 1, noise: 0.1}'");
  } else {
    command->footer(
        "Example:\n  gossamer simulate consensus --topology base-k --world-size 100 --rounds 20");
  }
  add_common(*command, arguments);
  command->callback([arguments, &exit_code] {
    run(*arguments);
    exit_code = static_cast<int>(ExitCode::kDone);
  });
}

}  // namespace

void add_simulate_command(CLI::App& program, int& exit_code, const PlugIns& own) {
  CLI::App* command =
      program.add_subcommand("simulate", "Mix or train thousands of virtual ranks in one process");
  add_kind(*command, "consensus", "Mixing alone, from random vectors", exit_code, own);
  add_kind(*command, "sgd", "Training on problems whose optimum is known", exit_code, own);
  const auto arguments = std::make_shared<SimulateArguments>();
  arguments->own = own;
  command->add_option("config", arguments->config, "A YAML file that says what to simulate");
  command->add_option("settings", arguments->settings, "Values to change, as world_size=100");
  add_common(*command, arguments);
  command->require_subcommand(0, 1);
  command->footer(
      "Examples:\n"
      "  gossamer simulate consensus --topology ring --world-size 16 --rounds 200\n"
      "  gossamer simulate configs/simulate.yaml topology=torus world_size=64");
  command->callback([arguments, command, &exit_code] {
    if (!command->get_subcommands().empty()) return;
    if (arguments->config.empty()) {
      throw ConfigError("command line", "simulate",
                        "nothing to simulate, allowed: a YAML file, consensus, or sgd; every one "
                        "has --help");
    }
    run(*arguments);
    exit_code = static_cast<int>(ExitCode::kDone);
  });
}

}  // namespace gossamer::apps

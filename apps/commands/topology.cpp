// gossamer topology list | show NAME | check FILE

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/commands/command_options.hpp"
#include "apps/commands/commands.hpp"
#include "apps/commands/list.hpp"
#include "apps/records/topology_report.hpp"
#include "base/error.hpp"
#include "base/options.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"
#include "comm/backends.hpp"
#include "topology/registry.hpp"
#include "topology/topology_file.hpp"
#include "topology/topology_picture.hpp"
#include "topology/verify.hpp"

namespace gossamer::apps {
namespace {

constexpr int kMostRanks = 1'000'000;

struct ShowArguments {
  std::string name;
  std::vector<std::string> options;
  int world_size = 0;
  int local_world_size = 0;
  std::int64_t model_bytes = 1'000'000;
  std::int64_t rounds = 0;
  std::string plot;
  bool json = false;
  PlugIns own;
};

void list(bool json, const PlugIns& own) {
  if (json) {
    std::cout << rows_of_kind("topologies", own).dump(2) << "\n";
    return;
  }
  print_kind(std::cout, "topologies", own);
  std::cout << "\n";
  print_kind(std::cout, "wrappers", own);
}

World world_to_show(const ShowArguments& arguments) {
  const int local =
      arguments.local_world_size > 0 ? arguments.local_world_size : arguments.world_size;
  if (arguments.world_size % local != 0) {
    throw ConfigError("command line", "--local-world-size",
                      concat(local, " does not divide the world size ", arguments.world_size,
                             ", allowed: a divisor of it"));
  }
  return world_of(0, arguments.world_size, local);
}

/// The section of `name`, which is `ring` or a section in braces such as `{alternate: [ring,
/// torus]}`, with the options added.
Options section_of(const std::string& name, const std::vector<std::string>& options) {
  YamlNode root;
  if (name.starts_with('{')) {
    root = parse_yaml(name, "command line");
  } else {
    root = {.kind = YamlNode::Kind::kMapping, .where = "command line"};
    root.entries.emplace_back(
        YamlNode::Key{"name", "command line"},
        YamlNode{.kind = YamlNode::Kind::kScalar, .where = "command line", .scalar = name});
  }
  for (const std::string& option : options) apply_override(root, option);
  return Options(std::move(root));
}

void draw(const Topology& topology, const World& world, const std::string& path) {
  if (!path.ends_with(".svg")) {
    throw ConfigError("command line", "--plot",
                      concat(path, " is no picture, allowed: a name that ends with .svg"));
  }
  write_output("--plot", path, topology_picture(topology, world.size));
}

void show(const ShowArguments& arguments) {
  const World world = world_to_show(arguments);
  const Options section = section_of(arguments.name, arguments.options);
  const auto topology = read_topology(section, world, std::nullopt, arguments.own.topologies);
  section.reject_unknown();
  if (!arguments.plot.empty()) {
    draw(*topology, world, arguments.plot);
    if (!arguments.json) std::cout << "The rounds are drawn in " << arguments.plot << "\n";
  }
  std::optional<std::int64_t> rounds;
  if (arguments.rounds > 0) rounds = arguments.rounds;
  if (arguments.json) rounds_to_write(*topology, world, rounds);
  const TopologyFigures figures = topology_figures(*topology, world.size, arguments.model_bytes);
  if (arguments.json) {
    write_json(std::cout, *topology, world, figures, rounds);
    return;
  }
  std::cout << topology->name() << ", " << world.size << " ranks, " << world.node_size
            << " on each node\n"
            << describe_rounds(*topology, arguments.rounds > 0 ? arguments.rounds : 32)
            << describe_figures(figures);
}

/// Prints all violations of the rules. Returns true if there are none.
bool check(const std::string& path, bool json) {
  TopologyFile file = read_topology_file(path);
  const int world_size = file.world_size;
  const auto topology = unchecked_topology(std::move(file));
  const auto found = find_violation(*topology, world_size, *topology->period());
  if (json) {
    nlohmann::ordered_json report = {{"file", path},
                                     {"world_size", world_size},
                                     {"rounds", *topology->period()},
                                     {"directed", topology->directed()},
                                     {"holds", !found}};
    if (found) {
      report["rule"] = found->rule;
      report["rank"] = found->rank;
      report["round"] = found->round;
      report["text"] = found->text;
    }
    std::cout << report.dump(2) << "\n";
  } else if (found) {
    std::cout << path << ": the rule `" << found->rule << "` is broken"
              << (found->round < 0 ? std::string() : concat(" in round ", found->round)) << ": "
              << found->text << "\n";
  } else {
    std::cout << path << ": all rules hold; " << *topology->period() << " round(s) of "
              << world_size << " ranks, " << (topology->directed() ? "directed" : "undirected")
              << "\n";
  }
  return !found;
}

void add_list(CLI::App& command, int& exit_code, const PlugIns& own) {
  auto json = std::make_shared<bool>(false);
  CLI::App* list_command =
      command.add_subcommand("list", "The topologies that there are, as gossamer list topologies");
  list_command->add_flag("--json", *json, "As JSON");
  list_command->footer("Example:\n  gossamer topology list --json");
  list_command->callback([json, &exit_code, &own] {
    list(*json, own);
    exit_code = static_cast<int>(ExitCode::kDone);
  });
}

void add_show(CLI::App& command, int& exit_code, const PlugIns& own) {
  auto arguments = std::make_shared<ShowArguments>();
  arguments->own = own;
  CLI::App* show_command =
      command.add_subcommand("show", "Rounds, traffic and spectrum of a topology");
  show_command
      ->add_option("name", arguments->name,
                   "The topology, or a section in braces: '{alternate: [ring, torus]}'")
      ->required();
  show_command->add_option("options", arguments->options, "Its options, as k=2");
  show_command->add_option("--world-size", arguments->world_size, "Number of ranks")
      ->required()
      ->check(CLI::Range(1, kMostRanks));
  show_command
      ->add_option("--local-world-size", arguments->local_world_size,
                   "Ranks on each node; all of them when not given")
      ->check(CLI::Range(1, kMostRanks));
  show_command->add_option("--model-bytes", arguments->model_bytes, "Size of the model, in bytes")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 50));
  show_command
      ->add_option("--rounds", arguments->rounds,
                   "How many rounds to list; as JSON all of a period when not given, otherwise 32")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  show_command->add_option("--plot", arguments->plot, "Draw the rounds into FILE.svg");
  show_command->add_flag("--json", arguments->json, "As JSON");
  show_command->footer(
      "Examples:\n"
      "  gossamer topology show alternating-exp-ring --world-size 8 --local-world-size 2\n"
      "  gossamer topology show base-k --world-size 12 k=2 --plot base-3.svg");
  show_command->callback([arguments, &exit_code] {
    show(*arguments);
    exit_code = static_cast<int>(ExitCode::kDone);
  });
}

void add_check(CLI::App& command, int& exit_code) {
  auto path = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  CLI::App* check_command =
      command.add_subcommand("check", "Whether a topology in a file keeps the rules");
  check_command->add_option("file", *path, "The YAML or JSON file")->required();
  check_command->add_flag("--json", *json, "As JSON");
  check_command->footer(
      "The exit code is 0 if all rules hold, 1 if one is broken, 2 if the file cannot be read as\n"
      "a topology.\n\nExample:\n  gossamer topology check mine.yaml");
  check_command->callback([path, json, &exit_code] {
    exit_code = static_cast<int>(check(*path, *json) ? ExitCode::kDone : ExitCode::kCheckFailed);
  });
}

}  // namespace

void add_topology_command(CLI::App& program, int& exit_code, const PlugIns& own) {
  CLI::App* command = program.add_subcommand("topology", "List, show and check topologies");
  command->require_subcommand(1);
  command->footer("Example:\n  gossamer topology show ring --world-size 6 --json");
  add_list(*command, exit_code, own);
  add_show(*command, exit_code, own);
  add_check(*command, exit_code);
}

}  // namespace gossamer::apps

// gossamer topology list | show NAME

#include <iostream>
#include <memory>
#include <string>

#include "gossamer/apps/commands.hpp"
#include "gossamer/apps/topology_report.hpp"
#include "gossamer/comm/launch.hpp"
#include "gossamer/core/base/error.hpp"
#include "gossamer/core/base/text.hpp"
#include "gossamer/topology/registry.hpp"

namespace gossamer::apps {
namespace {

struct ShowArguments {
  std::string name;
  int world_size = 0;
  int local_world_size = 0;
  bool json = false;
};

void list(bool json) {
  auto entries = nlohmann::ordered_json::array();
  for (const TopologyEntry& row : topology_table()) {
    auto options = nlohmann::ordered_json::array();
    for (const TopologyOption& option : row.options) {
      options.push_back({{"name", option.name}, {"summary", option.summary}});
    }
    entries.push_back(
        {{"name", row.name}, {"summary", row.summary}, {"options", std::move(options)}});
    if (!json) std::cout << row.name << "\n    " << row.summary << "; sizes: " << row.sizes << "\n";
  }
  if (json) std::cout << entries.dump(2) << "\n";
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

void show(const ShowArguments& arguments) {
  const World world = world_to_show(arguments);
  const auto topology = make_topology(arguments.name, world);
  const nlohmann::ordered_json report = to_json(*topology, world);
  if (arguments.json) {
    std::cout << report.dump(2) << "\n";
    return;
  }
  std::cout << topology->name() << ", " << world.size << " ranks, " << world.local_size
            << " on each node\n"
            << describe_rounds(*topology) << "  period " << report["period"] << ", spectral gap "
            << report["spectral_gap"] << ", exact average after " << report["exact_after"]
            << " rounds\n";
}

}  // namespace

void add_topology_command(CLI::App& program, int& exit_code) {
  CLI::App* command = program.add_subcommand("topology", "List and show topologies");
  command->require_subcommand(1);
  command->footer("Example:\n  gossamer topology show ring --world-size 6 --json");

  auto json = std::make_shared<bool>(false);
  CLI::App* list_command = command->add_subcommand("list", "The topologies that there are");
  list_command->add_flag("--json", *json, "As JSON");
  list_command->footer("Example:\n  gossamer topology list --json");
  list_command->callback([json, &exit_code] {
    list(*json);
    exit_code = static_cast<int>(ExitCode::kDone);
  });

  auto arguments = std::make_shared<ShowArguments>();
  CLI::App* show_command = command->add_subcommand("show", "Rounds and spectrum of a topology");
  show_command->add_option("name", arguments->name, "The topology")->required();
  show_command->add_option("--world-size", arguments->world_size, "Number of ranks")
      ->required()
      ->check(CLI::Range(1, 1'000'000));
  show_command
      ->add_option("--local-world-size", arguments->local_world_size,
                   "Ranks on each node; all of them when not given")
      ->check(CLI::Range(1, 1'000'000));
  show_command->add_flag("--json", arguments->json, "As JSON");
  show_command->footer(
      "Example:\n  gossamer topology show alternating-exp-ring --world-size 8 "
      "--local-world-size 2");
  show_command->callback([arguments, &exit_code] {
    show(*arguments);
    exit_code = static_cast<int>(ExitCode::kDone);
  });
}

}  // namespace gossamer::apps

// gossamer plan

#include "apps/lab/plan/plan.hpp"

#include <algorithm>
#include <cctype>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/commands/command_options.hpp"
#include "apps/commands/commands.hpp"
#include "apps/lab/plan/plan_request.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"

namespace gossamer::apps {
namespace {

struct PlanArguments {
  PlugIns own;
  /// Settings `key=value`.
  std::vector<std::string> settings;
  /// Texts of YAML.
  std::vector<std::string> algorithms;
  bool json = false;
};

/// `--compute-ms` for `compute_ms`.
std::string option_of(std::string key) {
  std::ranges::replace(key, '_', '-');
  return "--" + key;
}

void plan(const PlanArguments& arguments) {
  YamlNode root{.kind = YamlNode::Kind::kMapping, .where = "command line"};
  for (const std::string& setting : arguments.settings) apply_override(root, setting);
  if (!arguments.algorithms.empty()) {
    apply_override(root, concat("algorithm=[", join(arguments.algorithms, ", "), "]"));
  }
  for (auto& [key, value] : root.entries) value.where = option_of(key.name);
  const PlanRequest request = read_plan(Options(std::move(root)), arguments.own);
  if (arguments.json) {
    std::cout << to_json(request, make_plan(request.options)).dump(2) << "\n";
    return;
  }
  const std::string text = to_text(make_plan(request.options), request.options);
  for (const std::string& sentence : request.assumed) std::cout << sentence << "\n";
  std::cout << (request.assumed.empty() ? "" : "\n") << text;
}

void add_number_options(CLI::App& command, PlanArguments& arguments) {
  for (const OptionEntry& entry : plan_numbers()) {
    const std::string key(entry.name);
    std::string help = entry.text();
    help.front() = static_cast<char>(std::toupper(help.front()));
    add_setting(command, arguments.settings, option_of(key), key, help);
  }
  add_setting(command, arguments.settings, "--bucket-bytes", "bucket_bytes",
              "Bytes of every bucket, with commas, in place of --model-bytes",
              [](const std::string& value) { return concat("[", value, "]"); });
}

void add_word_options(CLI::App& command, PlanArguments& arguments) {
  add_setting(command, arguments.settings, "--links", "links",
              "What gossamer bench links has measured, JSON or YAML", quoted_text);
  add_setting(command, arguments.settings, "--device", "device",
              "cpu or cuda: where the model lies; some algorithms run on processors only");
  command.add_option("--algorithm", arguments.algorithms,
                     "Compare only this algorithm (see gossamer list algorithms), with its options "
                     "as '{name: outer, every: 20}'; may be given several times");
  add_setting(command, arguments.settings, "--codec", "codec",
              "Compare only this encoding of messages: see gossamer list codecs");
  add_setting(command, arguments.settings, "--optimizer", "optimizer",
              "The optimizer, for algorithms that send its states; adamw when not given");
}

}  // namespace

void add_plan_command(CLI::App& program, int& exit_code, const PlugIns& own) {
  auto arguments = std::make_shared<PlanArguments>();
  arguments->own = own;
  CLI::App* command = program.add_subcommand(
      "plan",
      "Compare algorithms, topologies, codecs and periods for a cluster, and advise one of them");
  add_number_options(*command, *arguments);
  add_word_options(*command, *arguments);
  command->add_flag("--json", arguments->json, "As JSON");
  command->footer(
      "Examples:\n"
      "  gossamer plan --model-bytes 260e6 --world-size 16 --local-world-size 4 --compute-ms 80\n"
      "  gossamer plan --model-bytes 12e6 --world-size 4 --links links.json\n"
      "  gossamer plan --model-bytes 260e6 --world-size 16 --algorithm gossip --codec int8\n"
      "  gossamer plan --model-bytes 4e9 --world-size 12 --links configs/links_continents.yaml\n"
      "gossamer bench compute CONFIG measures --compute-ms, gossamer bench links measures "
      "--links.");
  command->callback([arguments, &exit_code] {
    plan(*arguments);
    exit_code = static_cast<int>(ExitCode::kDone);
  });
}

}  // namespace gossamer::apps

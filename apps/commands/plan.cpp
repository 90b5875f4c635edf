// gossamer plan

#include "apps/plan/plan.hpp"

#include <algorithm>
#include <cctype>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/commands/commands.hpp"
#include "apps/commands/settings.hpp"
#include "apps/plan/plan_request.hpp"
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
  bool far = false;
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
  if (arguments.far) apply_override(root, "far=true");
  for (auto& [key, value] : root.entries) value.where = option_of(key.name);
  PlanRequest request = read_plan(arguments.own.options(std::move(root)));
  request.options.own = arguments.own;
  if (arguments.json) {
    std::cout << plan_as_json(request).dump(2) << "\n";
    return;
  }
  const std::string text = request.is_far ? to_text(make_far_plan(request.options))
                                          : to_text(make_plan(request.options), request.options);
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
  add_setting(command, arguments.settings, "--rank-by", "rank_by",
              "target: the time until the target; step: the time of a step; budget: the time until "
              "the target, of the rows within --budget. Budget when not given and the links have "
              "regions, otherwise target");
  command.add_option("--algorithm", arguments.algorithms,
                     "An algorithm (see gossamer list algorithms) with its options, as "
                     "late_average or '{name: outer, every: 20}'; may be given several times. Not "
                     "given: gossip and all-reduce");
  add_setting(command, arguments.settings, "--codec", "codec",
              "What messages hold in place of float32 elements: see gossamer list codecs");
  add_setting(command, arguments.settings, "--optimizer", "optimizer",
              "The optimizer of --algorithm, for algorithms that send its states; adamw when not "
              "given");
}

}  // namespace

void add_plan_command(CLI::App& program, int& exit_code, const PlugIns& own) {
  auto arguments = std::make_shared<PlanArguments>();
  arguments->own = own;
  CLI::App* command = program.add_subcommand(
      "plan",
      "Predict the time and bytes of a step for every topology that fits a cluster, and rank them");
  add_number_options(*command, *arguments);
  add_word_options(*command, *arguments);
  command->add_flag("--far", arguments->far,
                    "For slow links: choose how often ranks average, whether all of them or pairs, "
                    "and the codec, within --budget");
  command->add_flag("--json", arguments->json, "As JSON");
  command->footer(
      "Examples:\n"
      "  gossamer plan --model-bytes 260e6 --world-size 16 --local-world-size 4 --compute-ms 80\n"
      "  gossamer plan --model-bytes 12e6 --world-size 4 --links links.json --rank-by step\n"
      "  gossamer plan --model-bytes 260e6 --world-size 16 --algorithm gossip --codec int8\n"
      "  gossamer plan --model-bytes 498e6 --world-size 12 --links configs/links_continents.yaml\n"
      "  gossamer plan --model-bytes 4e9 --world-size 12 --links configs/links_continents.yaml "
      "--far");
  command->callback([arguments, &exit_code] {
    plan(*arguments);
    exit_code = static_cast<int>(ExitCode::kDone);
  });
}

}  // namespace gossamer::apps

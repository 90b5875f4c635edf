// gossamer bench topologies CONFIG.yaml [key.sub=value ...]

#include "apps/lab/study/study.hpp"

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands/command_options.hpp"
#include "apps/commands/commands.hpp"

namespace gossamer::apps {
namespace {

struct StudyArguments {
  std::string config_path;
  std::vector<std::string> overrides;
  StartOptions start;
  bool json = false;
  bool overwrite = false;
};

void print_json(const StudyOutcome& outcome) {
  const Json json = {{"folder", outcome.folder},
                     {"kept", outcome.num_kept},
                     {"groups", to_json(group_over_seeds(outcome.rows))},
                     {"runs", to_json(outcome.rows)}};
  std::cout << json.dump() << std::endl;
}

void print_table(const StudyOutcome& outcome) {
  std::cout << "\n"
            << to_text(group_over_seeds(outcome.rows)) << "\n  accuracies and distances are mean "
            << "and standard deviation over seeds, at the end of the runs\n"
            << "  every run is in " << outcome.folder << "/results.csv, this table in "
            << outcome.folder << "/table.md\n"
            << "  curves: gossamer report " << outcome.folder << "/*/" << std::endl;
}

int bench_topologies(const StudyArguments& arguments, const PlugIns& own) {
  const StudyOutcome outcome = run_study({.config_path = arguments.config_path,
                                          .overrides = arguments.overrides,
                                          .start = arguments.start,
                                          .heeds_signals = true,
                                          .overwrite = arguments.overwrite,
                                          .own = own});
  // Empty in processes without rank 0, which speaks alone.
  if (outcome.exit_code != 0 || outcome.rows.empty()) return outcome.exit_code;
  if (arguments.json) {
    print_json(outcome);
  } else {
    print_table(outcome);
  }
  return outcome.exit_code;
}

}  // namespace

void add_study_command(CLI::App& bench, int& exit_code, const PlugIns& own) {
  auto arguments = std::make_shared<StudyArguments>();
  CLI::App* command = bench.add_subcommand(
      "topologies",
      "How training converges: topologies x optimizers x seeds x heterogeneity, run for real");
  command->add_option("config", arguments->config_path, "The study's configuration")
      ->required()
      ->type_name("CONFIG.yaml");
  command->add_option("overrides", arguments->overrides, "Values that replace those of the file")
      ->type_name("key.sub=value");
  add_start_options(*command, arguments->start);
  command->add_flag("--json", arguments->json, "One JSON object on stdout instead of the table");
  command->add_flag("--overwrite", arguments->overwrite,
                    "Replace finished runs whose values are others than the study's");
  command->footer(
      "Finished runs are kept. After a stop, the same command continues where the study was.\n"
      "Examples:\n"
      "  gossamer bench topologies configs/study_glyphs.yaml\n"
      "  gossamer bench topologies configs/study_mnist.yaml "
      "base.data.path=/where/it/is/t10k-images-idx3-ubyte.gz\n"
      "  gossamer bench topologies configs/study_glyphs.yaml --processes 4\n"
      "Curves: gossamer report runs/study_glyphs/*/ -o study.html");
  command->callback(
      [arguments, &exit_code, &own] { exit_code = bench_topologies(*arguments, own); });
}

}  // namespace gossamer::apps

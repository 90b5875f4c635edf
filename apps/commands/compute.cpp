// gossamer bench compute CONFIG.yaml [key.sub=value ...]

#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>
#include <torch/cuda.h>

#include "apps/commands/commands.hpp"
#include "apps/lab/bench/statistics.hpp"
#include "apps/train/compute_threads.hpp"
#include "apps/train/device_choice.hpp"
#include "apps/train/rank_setup.hpp"
#include "apps/train/run_config.hpp"
#include "apps/train/training_loop.hpp"
#include "base/make_stream.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"
#include "comm/backends.hpp"

namespace gossamer::apps {
namespace {

struct ComputeArguments {
  std::string config_path;
  std::vector<std::string> overrides;
  int num_steps = 20;
  int num_warmup = 5;
  bool json = false;
  PlugIns own;
};

/// What gossamer plan needs to know of a configuration's model.
struct ComputeFigures {
  double step_s = 0.0;
  double least_s = 0.0;
  double most_s = 0.0;
  /// The bytes of the parameters, 4 for each.
  std::int64_t model_bytes = 0;
};

/// The configuration for one rank that exchanges nothing.
YamlNode read_tree(const ComputeArguments& arguments) {
  YamlNode tree = read_yaml_file(arguments.config_path);
  for (const std::string& text : arguments.overrides) apply_override(tree, text);
  for (const char* const alone : {"algorithm=local", "comm=null", "fault=null", "log.timeline=null",
                                  "log.timeline_steps=null"}) {
    apply_override(tree, alone);
  }
  return tree;
}

/// Seconds of a step, until the device has made it.
double time_step(TrainingLoop& trainer) {
  const auto begin = std::chrono::steady_clock::now();
  const torch::Tensor loss = trainer.train_step();
  if (loss.is_cuda()) torch::cuda::synchronize(loss.device().index());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

ComputeFigures measure(const ComputeArguments& arguments, Communicator& communicator,
                       const World& world) {
  const RunConfig config =
      read_run_config(Options(read_tree(arguments)), world, arguments.config_path, arguments.own);
  load_torch_for(config.device, num_gpus());
  set_compute_threads(config, world, &communicator);
  seed_generator(config.seed, world, "threads");
  SharedData data;
  TrainingLoop trainer(config, {.communicator = communicator,
                                .world = world,
                                .logger = Logger(config.comm.log_level(), ""),
                                .data = data.get(config),
                                .observer = [](const ProgressState&) {}});
  for (int step = 0; step < arguments.num_warmup; ++step) time_step(trainer);
  std::vector<double> seconds;
  for (int step = 0; step < arguments.num_steps; ++step) seconds.push_back(time_step(trainer));
  ComputeFigures figures{.step_s = median(seconds),
                         .least_s = quantile(seconds, 0.0),
                         .most_s = quantile(seconds, 1.0)};
  for (const ParameterInfo& parameter : trainer.model().engine().parameters()) {
    figures.model_bytes += 4 * parameter.numel();
  }
  trainer.close();
  return figures;
}

void print(const ComputeFigures& figures, const ComputeArguments& arguments) {
  // More digits than four say nothing.
  const auto milliseconds = [](double seconds) { return std::round(1e5 * seconds) / 100.0; };
  const double compute_ms = milliseconds(figures.step_s);
  if (arguments.json) {
    const nlohmann::ordered_json json = {{"compute_ms", compute_ms},
                                         {"least_ms", milliseconds(figures.least_s)},
                                         {"most_ms", milliseconds(figures.most_s)},
                                         {"model_bytes", figures.model_bytes},
                                         {"threads", at::get_num_threads()},
                                         {"steps", arguments.num_steps}};
    std::cout << json.dump() << std::endl;
    return;
  }
  std::cout << "A step of one rank without exchange takes " << shortest(compute_ms) << " ms ("
            << shortest(milliseconds(figures.least_s)) << " to "
            << shortest(milliseconds(figures.most_s)) << " ms in " << arguments.num_steps
            << " steps, " << at::get_num_threads() << " threads).\n"
            << "gossamer plan --compute-ms " << shortest(compute_ms) << " --model-bytes "
            << figures.model_bytes << " --world-size RANKS --links links.json\n";
}

}  // namespace

void add_bench_compute_command(CLI::App& bench, int& exit_code, const PlugIns& own) {
  auto arguments = std::make_shared<ComputeArguments>();
  arguments->own = own;
  CLI::App* command = bench.add_subcommand(
      "compute", "The time of a step of a configuration's model on one rank, for plan");
  command->add_option("config", arguments->config_path, "The run's configuration")->required();
  command->add_option("overrides", arguments->overrides, "Values that replace those of the file")
      ->take_all();
  command->add_option("--steps", arguments->num_steps, "Timed steps")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--warmup", arguments->num_warmup, "Steps before them")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "One JSON object on stdout");
  command->footer(
      "Run it on a machine as each rank has it; run.threads=N says how many cores a rank gets.\n"
      "Example:\n"
      "  gossamer bench compute configs/quickstart.yaml data.batch_size=64 run.threads=1");
  command->callback([arguments, &exit_code] {
    const auto body = [&](Communicator& communicator, const World& world) {
      print(measure(*arguments, communicator, world), *arguments);
      return static_cast<int>(ExitCode::kDone);
    };
    exit_code = launch("threads", {.num_ranks = 1}, body);
  });
}

}  // namespace gossamer::apps

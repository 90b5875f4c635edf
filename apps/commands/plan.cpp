// gossamer plan

#include "apps/plan/plan.hpp"

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/commands/commands.hpp"
#include "base/error.hpp"
#include "base/options.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"
#include "core/algorithm.hpp"
#include "optim/codec.hpp"
#include "optim/registry.hpp"

namespace gossamer::apps {
namespace {

constexpr double kAssumedComputeMs = 100.0;

/// The options that replace a link's speed of the file.
struct SpeedArguments {
  std::optional<double> latency_us = std::nullopt;
  std::optional<double> gbit = std::nullopt;
};

struct PlanArguments {
  PlugIns own;
  double model_bytes = 0.0;
  /// Bytes of each bucket; replaces the model's bytes.
  std::vector<double> bucket_bytes;
  double bucket_mb = 25.0;
  int world_size = 0;
  int local_world_size = 0;
  std::string links;
  SpeedArguments within;
  SpeedArguments between;
  std::optional<double> update_gbytes;
  std::optional<double> compute_ms;
  double backward_share = 2.0 / 3.0;
  double straggler_cv = 0.0;
  double target = 1e-3;
  /// Empty: budget for a cluster in several regions, otherwise target.
  std::string rank_by;
  double budget = 0.1;
  std::vector<std::string> algorithms;
  std::string optimizer = "adamw";
  std::string codec = "fp32";
  std::uint64_t seed = 1;
  bool json = false;
};

void apply(const SpeedArguments& given, const std::optional<LinkSpeed>& assumed,
           std::optional<LinkSpeed>& speed) {
  if (!given.latency_us && !given.gbit) return;
  if (!speed) speed = assumed;
  if (given.latency_us) speed->latency_s = 1e-6 * *given.latency_us;
  if (given.gbit) speed->bandwidth = 1e9 / 8.0 * *given.gbit;
}

Links links_of(const PlanArguments& arguments) {
  Links links = arguments.links.empty() ? assumed_links() : read_links_file(arguments.links);
  apply(arguments.within, assumed_links().within, links.within);
  apply(arguments.between, assumed_links().between, links.between);
  if (arguments.update_gbytes) links.update_bytes_per_s = 1e9 * *arguments.update_gbytes;
  return links;
}

std::vector<double> buckets_of(const PlanArguments& arguments) {
  if (!arguments.bucket_bytes.empty()) return arguments.bucket_bytes;
  if (!(arguments.model_bytes > 0.0)) {
    throw ConfigError("command line", "--model-bytes",
                      "is missing, allowed: the bytes of all parameters (4 for each in float32), "
                      "or --bucket-bytes");
  }
  return planned_buckets(arguments.model_bytes, arguments.bucket_mb * 1024.0 * 1024.0,
                         arguments.world_size);
}

/// One sentence for each value that was assumed because the user did not give it.
std::vector<std::string> assumptions(const PlanArguments& arguments, const Links& links) {
  std::vector<std::string> sentences;
  const bool some_given = arguments.within.gbit || arguments.between.gbit ||
                          arguments.within.latency_us || arguments.between.latency_us;
  if (arguments.links.empty() && !some_given) {
    sentences.emplace_back(
        "Links are assumed to carry 10 GB/s within a node and 10 Gbit/s between nodes; measure "
        "yours with gossamer bench links, and give the file with --links.");
  }
  if (!arguments.compute_ms && !links.compute_s) {
    sentences.push_back(concat("Forward and backward are assumed to take ", kAssumedComputeMs,
                               " ms; give yours with --compute-ms."));
  }
  return sentences;
}

RankBy rank_by_of(const std::string& name, const Links& links) {
  if (name.empty()) return links.regions.count() > 1 ? RankBy::kBudget : RankBy::kTarget;
  if (name == "budget") return RankBy::kBudget;
  return name == "step" ? RankBy::kStep : RankBy::kTarget;
}

/// A configuration with one key: a name, or a name with options as in `{name: outer, every: 20}`.
Options options_of(const std::string& key, const std::string& text, const PlugIns& own) {
  return own.options(parse_yaml(concat(key, ": ", text), concat("--", key)));
}

void read_algorithms(const PlanArguments& arguments, PlanOptions& options) {
  for (const std::string& text : arguments.algorithms) {
    const Options root = options_of("algorithm", text, options.own);
    options.algorithms.push_back(read_algorithm(root));
    root.reject_unknown();
  }
  const Options root = options_of("optimizer", arguments.optimizer, options.own);
  const Options section = root.named_section("optimizer");
  options.optimizer =
      make_optimizer(section.choice("name", optimizer_names(section), std::nullopt), section);
  root.reject_unknown();
  options.codec = find_codec(arguments.codec, root);
}

void plan(const PlanArguments& arguments) {
  PlanOptions options{.target = arguments.target, .budget = arguments.budget, .own = arguments.own};
  const int local = arguments.local_world_size > 0 ? arguments.local_world_size : 1;
  const Links links = links_of(arguments);
  options.rank_by = rank_by_of(arguments.rank_by, links);
  read_algorithms(arguments, options);
  const double given_ms = links.compute_s ? 1e3 * *links.compute_s : kAssumedComputeMs;
  options.model = {.world = {.size = arguments.world_size, .node_size = local},
                   .links = links,
                   .compute_s = 1e-3 * arguments.compute_ms.value_or(given_ms),
                   .backward_share = arguments.backward_share,
                   .straggler_cv = arguments.straggler_cv,
                   .seed = arguments.seed,
                   .bucket_bytes = buckets_of(arguments)};
  const Plan result = make_plan(options);
  const std::vector<std::string> assumed = assumptions(arguments, links);
  if (!arguments.json) {
    for (const std::string& sentence : assumed) std::cout << sentence << "\n";
    std::cout << (assumed.empty() ? "" : "\n") << to_text(result, options);
    return;
  }
  nlohmann::ordered_json json = {{"world_size", arguments.world_size},
                                 {"local_world_size", local},
                                 {"links", to_json(links)},
                                 {"compute_ms", 1e3 * options.model.compute_s},
                                 {"bucket_bytes", options.model.bucket_bytes},
                                 {"straggler_cv", options.model.straggler_cv},
                                 {"target", options.target},
                                 {"assumed", assumed}};
  json.update(to_json(result));
  std::cout << json.dump(2) << "\n";
}

void add_speed_options(CLI::App& command, const std::string& which, SpeedArguments& speed) {
  command
      .add_option(concat("--", which, "-latency-us"), speed.latency_us,
                  concat("Microseconds of a message ", which, " nodes, in place of the file's"))
      ->check(CLI::Range(0.0, 1e9));
  command
      .add_option(concat("--", which, "-gbit"), speed.gbit,
                  concat("Gbit/s ", which, " nodes, in place of the file's"))
      ->check(CLI::Range(1e-6, 1e6));
}

void add_cluster_options(CLI::App& command, PlanArguments& arguments) {
  command.add_option("--world-size", arguments.world_size, "Number of ranks")
      ->required()
      ->check(CLI::Range(1, kMostPlannedRanks));
  command
      .add_option("--local-world-size", arguments.local_world_size,
                  "Ranks on each node; 1 when not given")
      ->check(CLI::Range(1, kMostPlannedRanks));
  command.add_option("--links", arguments.links,
                     "What gossamer bench links has measured, JSON or YAML");
  add_speed_options(command, "within", arguments.within);
  add_speed_options(command, "between", arguments.between);
  command
      .add_option("--update-gbytes", arguments.update_gbytes,
                  "GB of parameters that a rank mixes and updates in a second; 0: in no time")
      ->check(CLI::Range(0.0, 1e6));
}

void add_model_options(CLI::App& command, PlanArguments& arguments) {
  command
      .add_option("--model-bytes", arguments.model_bytes,
                  "Bytes of all parameters: 4 for each in float32")
      ->check(CLI::Range(1.0, 1e15));
  command.add_option("--bucket-mb", arguments.bucket_mb, "MiB at which a bucket closes")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  command
      .add_option("--bucket-bytes", arguments.bucket_bytes,
                  "Bytes of every bucket, with commas, in place of --model-bytes")
      ->delimiter(',')
      ->expected(1, 256)
      ->check(CLI::Range(1.0, 1e15));
  command
      .add_option("--compute-ms", arguments.compute_ms,
                  "Milliseconds of forward and backward of a step")
      ->check(CLI::Range(0.0, 1e9));
  command
      .add_option("--backward-share", arguments.backward_share,
                  "Share of the time of --compute-ms that the backward pass takes")
      ->check(CLI::Range(0.0, 1.0));
  command
      .add_option("--straggler-cv", arguments.straggler_cv,
                  "Standard deviation of compute times over ranks and steps, divided by the mean")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
}

void add_algorithm_options(CLI::App& command, PlanArguments& arguments) {
  command.add_option("--algorithm", arguments.algorithms,
                     "An algorithm (see gossamer list algorithms) with its options, as "
                     "late_average or '{name: outer, every: 20}'; may be given several times. Not "
                     "given: gossip and all-reduce");
  command
      .add_option("--codec", arguments.codec,
                  "What messages hold in place of float32 elements: see gossamer list codecs")
      ->check(CLI::IsMember(codec_names(arguments.own.options({}))))
      ->capture_default_str();
  command
      .add_option("--optimizer", arguments.optimizer,
                  "The optimizer of --algorithm, for algorithms that send its states")
      ->capture_default_str();
}

}  // namespace

void add_plan_command(CLI::App& program, int& exit_code, const PlugIns& own) {
  auto arguments = std::make_shared<PlanArguments>();
  arguments->own = own;
  CLI::App* command = program.add_subcommand(
      "plan",
      "Predict the time and bytes of a step for every topology that fits a cluster, and rank them");
  add_model_options(*command, *arguments);
  add_cluster_options(*command, *arguments);
  command
      ->add_option("--target", arguments->target,
                   "Factor by which the ranks' distance from their mean is to shrink")
      ->check(CLI::Range(1e-9, 0.999999))
      ->capture_default_str();
  command
      ->add_option("--rank-by", arguments->rank_by,
                   "target: the time until the target; step: the time of a step; budget: the time "
                   "until the target, of the rows within --budget. Budget when not given and the "
                   "links have regions, otherwise target")
      ->check(CLI::IsMember({"target", "step", "budget"}));
  command
      ->add_option("--budget", arguments->budget,
                   "Share of a step's time that communication may add, for --rank-by budget")
      ->check(CLI::Range(0.0, 1e3))
      ->capture_default_str();
  add_algorithm_options(*command, *arguments);
  command->add_option("--seed", arguments->seed, "Seed of the stragglers' random delays")
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "As JSON");
  command->footer(
      "Examples:\n"
      "  gossamer plan --model-bytes 260e6 --world-size 16 --local-world-size 4 --compute-ms 80\n"
      "  gossamer plan --model-bytes 12e6 --world-size 4 --links links.json --rank-by step\n"
      "  gossamer plan --model-bytes 260e6 --world-size 16 --algorithm gossip --codec int8\n"
      "  gossamer plan --model-bytes 498e6 --world-size 12 --links configs/links_continents.yaml");
  command->callback([arguments, &exit_code] {
    plan(*arguments);
    exit_code = static_cast<int>(ExitCode::kDone);
  });
}

}  // namespace gossamer::apps

// gossamer bench links

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/commands/command_options.hpp"
#include "apps/commands/commands.hpp"
#include "apps/lab/plan/link_bench.hpp"
#include "apps/lab/plan/plan.hpp"
#include "apps/train/agreement.hpp"
#include "apps/train/local_processes.hpp"
#include "apps/train/start_store.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

struct LinksArguments {
  LinkBenchOptions options;
  std::string pairs;
  RankOptions ranks;
  std::string output;
  /// Of the model to plan for; 0: none.
  double model_bytes = 0.0;
  double compute_ms = 100.0;
  bool json = false;
};

void print_text(const LinkFigures& figures, const LinksArguments& arguments) {
  const auto figures_of = [](const LinkSpeed& speed) {
    std::string text = concat(1e6 * speed.latency_s, " us, ", human_bytes(speed.bandwidth), "/s (",
                              8e-9 * speed.bandwidth, " Gbit/s)");
    if (speed.num_streams) {
      text += concat(", ", *speed.num_streams, *speed.num_streams == 1 ? " stream, " : " streams, ",
                     100.0 * *speed.loss_rate, " % sent again");
    }
    return text + "\n";
  };
  for (const PairFigures& each : figures.pairs) {
    std::cout << "ranks " << each.pair.first << " and " << each.pair.second
              << (each.is_within ? ", one node:     " : ", two nodes:    ")
              << figures_of(each.speed);
  }
  const Links& links = figures.links;
  if (links.within) std::cout << "within a node, median:  " << figures_of(*links.within);
  if (links.between) std::cout << "between nodes, median:  " << figures_of(*links.between);
  const Regions& regions = links.regions;
  for (std::size_t a = 0; a < regions.list.size(); ++a) {
    for (std::size_t b = a + 1; b < regions.list.size(); ++b) {
      const RegionPath& path = regions.paths[a][b];
      std::cout << regions.list[a].name << " and " << regions.list[b].name << ", slowest: "
                << figures_of({.latency_s = path.latency_s, .bandwidth = path.bandwidth});
    }
  }
  if (figures.sum_s) {
    std::cout << "sum over all ranks:     " << *figures.sum_s << " s for "
              << human_bytes(static_cast<double>(figures.sum_bytes)) << "\n";
  }
  if (!arguments.output.empty()) {
    std::cout << "Written to " << arguments.output << "; gossamer plan takes it with --links.\n";
  }
}

/// How to train over these links.
PlanOptions plan_options(const LinkFigures& figures, const LinksArguments& arguments,
                         const World& world) {
  constexpr double kBucketBytes = 25.0 * 1024.0 * 1024.0;
  return {
      .model = {.world = world,
                .links = figures.links,
                .compute_s = 1e-3 * arguments.compute_ms,
                .bucket_bytes = planned_buckets(arguments.model_bytes, kBucketBytes, world.size)}};
}

void print(const LinkFigures& figures, const LinksArguments& arguments, const World& world) {
  nlohmann::ordered_json json = to_json(figures);
  if (!arguments.json) print_text(figures, arguments);
  if (arguments.model_bytes > 0.0) {
    const PlanOptions options = plan_options(figures, arguments, world);
    const Plan plan = make_plan(options);
    json["plan"] = to_json(plan);
    if (!arguments.json) std::cout << "\n" << to_text(plan, options);
  }
  if (arguments.json) std::cout << json.dump() << std::endl;
}

int bench_links(LinksArguments& arguments) {
  const Start start = plan_ranks(arguments.ranks);
  if (const auto code = run_processes(start)) return *code;
  const auto body = [&](Communicator& communicator, const World& world) {
    return exit_together(world, [&] {
      LinkBenchOptions options = arguments.options;
      options.backend = start.is_rank ? "tcp" : arguments.ranks.launch.backend;
      if (arguments.ranks.launch.options.node_size == 0) require_regular_hosts(communicator, world);
      if (!arguments.pairs.empty()) {
        options.pairs = parse_pairs(arguments.pairs, world);
      } else {
        options.pairs = options.together ? disjoint_pairs(world) : default_pairs(world);
      }
      const LinkFigures figures = run_link_bench(communicator, world, options);
      const nlohmann::ordered_json json = to_json(figures);
      all_or_none(communicator, [&] {
        if (world.rank == 0 && !arguments.output.empty()) {
          write_output("--output", arguments.output, json.dump(2) + "\n");
        }
        return true;
      });
      if (world.rank == 0) {
        print(figures, arguments, world);
      }
      return static_cast<int>(ExitCode::kDone);
    });
  };
  return launch_as(start, arguments.ranks.launch, body);
}

}  // namespace

void add_bench_links_command(CLI::App& bench, int& exit_code) {
  auto arguments = std::make_shared<LinksArguments>();
  LinkBenchOptions& options = arguments->options;
  CLI::App* command =
      bench.add_subcommand("links", "Latency and bandwidth between pairs of ranks, for plan");
  command->add_option(
      "--pairs", arguments->pairs,
      "Pairs of ranks, as 0-1,0-2, or all; pairs of every two nodes also show which "
      "nodes lie apart; by default two ranks of a node and two of different nodes");
  command->add_flag("--together", options.together,
                    "All pairs at once, as in training; by default every rank with the one in "
                    "its place on the next node");
  command->add_option("--bytes", options.bytes, "Bytes of a block that bandwidth is measured with")
      ->check(CLI::Range(std::int64_t{1024}, std::int64_t{1} << 36U))
      ->capture_default_str();
  command->add_option("--pings", options.num_pings, "Small exchanges per pair, for the latency")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--transfers", options.num_transfers, "Large exchanges per pair")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_flag("--sums", options.sums, "Sums of such blocks over all ranks, too");
  CLI::Option* const model =
      command
          ->add_option("--model-bytes", arguments->model_bytes,
                       "Also choose how to train a model of so many bytes over these links, as "
                       "gossamer plan")
          ->check(CLI::Range(1.0, 1e15));
  command
      ->add_option("--compute-ms", arguments->compute_ms,
                   "Milliseconds of forward and backward of a step of that model")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str()
      ->needs(model);
  command->add_flag("--json", arguments->json, "One JSON object on stdout");
  command->add_option("-o,--output", arguments->output, "A file for gossamer plan --links");
  add_rank_options(*command, arguments->ranks);
  add_threads_option(*command, arguments->ranks);
  command
      ->add_option("--local-size", arguments->ranks.launch.options.node_size,
                   "Ranks that count as one node; as they really are when not given")
      ->check(CLI::Range(1, 1'000'000));
  command->footer(
      "Examples:\n"
      "  mpirun -n 4 gossamer bench links -o links.json\n"
      "  mpirun -n 4 gossamer bench links --together -o links.json\n"
      "  gossamer bench links --ranks 4 --local-size 2 --pairs all --json\n"
      "  gossamer bench links --rendezvous host1:29500 --world-size 2 -o links.json\n"
      "  mpirun -n 4 gossamer bench links --model-bytes 4e9 --compute-ms 900");
  command->callback([arguments, &exit_code] { exit_code = bench_links(*arguments); });
}

}  // namespace gossamer::apps

// gossamer bench kernel | step | compute (compute.cpp) | links (links.cpp) | topologies (study.cpp)

#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include "apps/commands/command_options.hpp"
#include "apps/commands/commands.hpp"
#include "apps/lab/bench/kernel_bench.hpp"
#include "apps/lab/bench/reference_task.hpp"
#include "apps/lab/bench/step_bench.hpp"
#include "apps/train/agreement.hpp"
#include "apps/train/local_processes.hpp"
#include "apps/train/start_store.hpp"
#include "base/error.hpp"
#include "base/make_stream.hpp"
#include "base/text.hpp"
#include "optim/codec.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

struct KernelArguments {
  KernelBenchOptions options;
  std::int64_t accum_iter = 4;
  std::string device = "cpu";
  std::string parameters = "float32";
  std::string codec = "fp32";
  std::string pass = "update";
  std::string simd = "auto";
  bool json = false;
};

/// The names of the passes, in the order of KernelPass.
constexpr std::array<std::string_view, 3> kPasses = {"update", "encode", "feedback"};

void bench_kernel(KernelArguments arguments) {
  KernelBenchOptions& options = arguments.options;
  options.device = parse_device(arguments.device);
  options.simd = simd_path_of(arguments.simd);
  options.model = arguments.parameters == "bfloat16" ? DType::kBFloat16 : DType::kFloat32;
  options.optimizer_options = options_yaml(options.optimizer, arguments.accum_iter);
  options.codec = find_codec(arguments.codec);
  options.pass =
      static_cast<KernelPass>(std::ranges::find(kPasses, arguments.pass) - kPasses.begin());
  const KernelFigures figures = KernelBench(options).run();
  if (arguments.json) {
    const nlohmann::ordered_json json = {
        {"optimizer", options.optimizer},
        {"device", arguments.device},
        {"parameters", arguments.parameters},
        {"codec", arguments.codec},
        {"pass", arguments.pass},
        {"threads", options.threads},
        {"simd", name_of(options.simd)},
        {"bucket_mib", options.bucket_mib},
        {"buckets", options.buckets},
        {"per_launch", options.per_launch},
        {"steps_per_cycle", figures.cycle},
        {"cycles", options.cycles},
        {"ms", figures.ms},
        {"least_ms", figures.least_ms},
        {"least_bytes_per_element", figures.least_bytes_per_element},
        {options.device == Device{} ? "pass_GBps" : "copy_GBps", figures.yardstick_gb_per_s},
        {"ratio_to_least", figures.ratio_to_least},
        {"ratio_ci95", {figures.ratio_interval.first, figures.ratio_interval.second}}};
    std::cout << json.dump() << std::endl;
    return;
  }
  const bool on_host = options.device == Device{};
  const bool updates = options.pass == KernelPass::kUpdate;
  std::cout << (updates ? options.optimizer : arguments.pass) << ", " << options.buckets
            << " buckets of " << options.bucket_mib << " MiB in turn, "
            << (options.per_launch == 1 ? "" : concat(options.per_launch, " at once, "))
            << (arguments.parameters == "bfloat16" ? "rounded to bfloat16 for the model, " : "")
            << (options.codec == nullptr ? "" : concat("codec ", arguments.codec, ", "));
  if (on_host) {
    std::cout << options.threads << " threads, " << name_of(options.simd);
  } else {
    std::cout << arguments.device;
  }
  std::cout << "\n  one bucket          " << figures.ms << " ms"
            << "\n  the least           " << figures.least_ms
            << " ms: " << figures.least_bytes_per_element << " bytes per element at "
            << figures.yardstick_gb_per_s << " GB/s ("
            << (on_host ? "a pass over as many arrays" : "copying") << ")"
            << "\n  ratio               " << figures.ratio_to_least
            << " (95 % interval of the median " << figures.ratio_interval.first << " .. "
            << figures.ratio_interval.second << ")\n";
}

void add_kernel_command(CLI::App& parent, int& exit_code) {
  auto arguments = std::make_shared<KernelArguments>();
  KernelBenchOptions& options = arguments->options;
  CLI::App* command = parent.add_subcommand(
      "kernel", "Mixing and update of a bucket against the bandwidth of memory");
  command->add_option("--optimizer", options.optimizer, "The optimizer")->capture_default_str();
  command->add_option("--threads", options.threads, "Threads that share the work")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--bucket-mib", options.bucket_mib, "Size of a bucket's parameters")
      ->check(CLI::Range(1e-4, 1e6))
      ->capture_default_str();
  command->add_option("--buckets", options.buckets, "Buckets, in turn")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  command->add_option("--cycles", options.cycles, "Cycles of the optimizer that are timed")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--accum-iter", arguments->accum_iter, "Steps per cycle of accum optimizers")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--device", arguments->device, "cpu, cuda or cuda:N")->capture_default_str();
  command
      ->add_option("--per-launch", options.per_launch,
                   "Buckets that are updated together; on a GPU by one launch")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  command
      ->add_option("--codec", arguments->codec, "What encodes the inbox, and the block for peers")
      ->check(CLI::IsMember(codec_names()))
      ->capture_default_str();
  command
      ->add_option("--pass", arguments->pass,
                   "update: mixing and update; encode: a block for a sum; feedback: the same, and "
                   "what the message lacks")
      ->check(CLI::IsMember({"update", "encode", "feedback"}))
      ->capture_default_str();
  command
      ->add_option("--parameters", arguments->parameters,
                   "What the model computes with: float32, or bfloat16 with float32 master copies")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  command->add_option("--simd", arguments->simd, "Vector path: auto, baseline, avx2, avx512")
      ->check(CLI::IsMember({"auto", "baseline", "avx2", "avx512"}));
  command->add_flag("--json", arguments->json, "One JSON object on stdout");
  command->footer("Example:\n  gossamer bench kernel --optimizer accum_adamw --threads 2 --json");
  command->callback([arguments, &exit_code] {
    bench_kernel(*arguments);
    exit_code = static_cast<int>(ExitCode::kDone);
  });
}

struct StepArguments {
  StepBenchOptions options;
  std::string engines = "gossip";
  RankOptions ranks;
  std::string timeline_steps;
};

int bench_step(StepArguments& arguments) {
  arguments.options.timeline_steps = parse_timeline_steps(arguments.timeline_steps);
  arguments.options.engines = read_step_engines(arguments.engines, arguments.options.own);
  arguments.ranks.launch.shares_memory = arguments.options.shares_memory;
  const Start start = plan_ranks(arguments.ranks);
  if (const auto code = run_processes(start)) return *code;
  at::set_num_threads(arguments.options.threads);
  const auto body = [&](Communicator& communicator, const World& world) {
    return exit_together(world, [&] {
      const auto lines = run_step_bench(communicator, world, arguments.options);
      if (world.rank == 0) {
        for (const std::string& line : lines) std::cout << line << std::endl;
      }
      return static_cast<int>(ExitCode::kDone);
    });
  };
  return launch_as(start, arguments.ranks.launch, body);
}

void add_slow_rank(CLI::App& command, StepBenchOptions& options) {
  CLI::Option* rank =
      command.add_option("--slow-rank", options.slow_rank, "This rank computes slower: it sleeps")
          ->check(CLI::Range(0, 1'000'000));
  command.add_option("--slowdown", options.slowdown, "How many times slower")
      ->check(CLI::Range(1.0, 1000.0))
      ->needs(rank)
      ->capture_default_str();
  command
      .add_option("--sleep-ms", options.sleep_ms,
                  "Every rank sleeps so long in every step, and the slow one longer; 0: none does")
      ->check(CLI::Range(0.0, 60'000.0))
      ->capture_default_str();
}

/// How many steps there are, and how large they are.
void add_step_sizes(CLI::App& command, StepBenchOptions& options) {
  const auto count = [](std::int64_t min) { return CLI::Range(min, std::int64_t{1'000'000'000}); };
  command.add_option("--steps", options.steps, "Timed steps of each engine")
      ->check(count(1))
      ->capture_default_str();
  command.add_option("--warmup", options.warmup, "Steps before, at least 3")
      ->check(count(0))
      ->capture_default_str();
  command.add_option("--rounds", options.rounds, "Turns of each of several engines")
      ->check(count(1))
      ->capture_default_str();
  command
      .add_option("--batch-size", options.batch_size,
                  "Samples per rank; 0: mlp 64, resnet20 32, gpt 4")
      ->check(count(0));
  command
      .add_option("--bucket-mb", options.bucket_mb,
                  "MiB at which a bucket closes. auto: the first steps try 25, 8, 3 and 1")
      ->transform(auto_or(CLI::Range(1e-6, 1e6)))
      ->capture_default_str();
  command.add_option("--accum-iter", options.accum_iter, "Steps per cycle of accum optimizers")
      ->check(count(1))
      ->capture_default_str();
  command.add_option("--lr", options.lr, "Learning rate")->check(CLI::NonNegativeNumber);
  command.add_option("--weight-decay", options.weight_decay, "Of every parameter")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Of initial values and data")->capture_default_str();
  command.add_option("--threads", options.threads, "Compute threads per rank")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

void add_step_command(CLI::App& parent, int& exit_code, const PlugIns& own) {
  auto arguments = std::make_shared<StepArguments>();
  arguments->options.own = own;
  StepBenchOptions& options = arguments->options;
  CLI::App* command =
      parent.add_subcommand("step", "A training step of a model, timed; one JSON object a line");
  command
      ->add_option("--engine", arguments->engines,
                   "An algorithm (see gossamer list algorithms) with its options, as gossip or "
                   "{name: allreduce, delay: 1}; or compute, forward and backward alone. Several "
                   "with commas take turns")
      ->capture_default_str();
  command->add_option("--model", options.model, "mlp, resnet20, gpt")
      ->check(CLI::IsMember(ReferenceTask::model_names()))
      ->capture_default_str();
  command->add_option("--topology", options.topology, "Topology, for the algorithms that need one")
      ->capture_default_str();
  command
      ->add_option("--codec", options.codec,
                   "What the ranks send in place of their parameters, or of their gradients "
                   "(allreduce), in every engine that can: see gossamer list codecs")
      ->capture_default_str();
  command->add_flag("--no-shared-memory{false}", options.shares_memory,
                    "Ranks of one host send messages, and do not read each other's memory");
  command->add_option("--optim", options.optimizer, "The optimizer")->capture_default_str();
  add_step_sizes(*command, options);
  add_slow_rank(*command, options);
  command->add_flag("--losses", options.losses, "Report every step's loss, warm-up included");
  add_timeline_options(*command, options.timeline, arguments->timeline_steps);
  command->get_option("--timeline-steps")->needs(command->get_option("--timeline"));
  add_rank_options(*command, arguments->ranks);
  add_threads_option(*command, arguments->ranks);
  command->footer(
      "Examples:\n"
      "  gossamer bench step --model mlp --losses\n"
      "  mpirun -n 2 gossamer bench step --model gpt --engine gossip,compute --rounds 10\n"
      "  gossamer bench step --processes 2 --engine gossip,allreduce");
  command->callback([arguments, &exit_code] { exit_code = bench_step(*arguments); });
}

}  // namespace

void add_bench_command(CLI::App& program, int& exit_code, const PlugIns& own) {
  CLI::App* command = program.add_subcommand(
      "bench",
      "Measure the kernel, the step, the computation, the links, and how topologies converge");
  command->require_subcommand(1);
  command->footer("Example:\n  gossamer bench kernel --threads 1");
  add_kernel_command(*command, exit_code);
  add_step_command(*command, exit_code, own);
  add_bench_compute_command(*command, exit_code, own);
  add_bench_links_command(*command, exit_code);
  add_study_command(*command, exit_code, own);
}

}  // namespace gossamer::apps

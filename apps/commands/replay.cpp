// gossamer replay CASE_DIR

#include "apps/lab/replay/replay.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <iostream>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "apps/commands/command_options.hpp"
#include "apps/commands/commands.hpp"
#include "apps/train/agreement.hpp"
#include "apps/train/local_processes.hpp"
#include "apps/train/start_store.hpp"
#include "base/error.hpp"
#include "base/make_stream.hpp"
#include "base/text.hpp"
#include "core/bucket/bucket_plan.hpp"

namespace gossamer::apps {
namespace {

using Json = nlohmann::ordered_json;

struct ReplayArguments {
  std::string folder;
  RankOptions ranks;
  /// The one that the ranks use.
  std::string backend;
  std::string simd = "auto";
  ReplayOptions options;
  std::int64_t bucket_bytes = 0;
  std::string device = "cpu";
  bool json = false;
};

/// `fc1_weight[3] of rank 2 after step 7 is 0.25 instead of 0.5`.
std::string where(const RecordedCase& recorded, const Deviation& at) {
  const ParameterInfo& parameter = recorded.parameters[static_cast<std::size_t>(at.parameter)];
  return concat(parameter.name, ", element ", at.element, ", of rank ", at.rank,
                at.step > 0 ? concat(" after step ", at.step) : " after the average", ": ",
                shortest(at.actual), " instead of ", shortest(at.expected));
}

Json to_json(const RecordedCase& recorded, const Deviation& at) {
  if (at.error == 0.0) return nullptr;
  Json json;
  if (at.step > 0) json["step"] = at.step;
  json["rank"] = at.rank;
  json["parameter"] = recorded.parameters[static_cast<std::size_t>(at.parameter)].name;
  json["element"] = at.element;
  json["actual"] = at.actual;
  json["expected"] = at.expected;
  return json;
}

Json to_json(const RecordedCase& recorded, const ReplayReport& report,
             const ReplayArguments& arguments) {
  const auto error = [](double value) { return std::isfinite(value) ? Json(value) : Json("inf"); };
  Json json = {
      {"case", recorded.name},
      {"passed", report.passed(arguments.options.tolerance)},
      {"tolerance", arguments.options.tolerance},
      {"largest_error", error(std::max(report.steps.error, report.average.error))},
      {"steps",
       {{"largest_error", error(report.steps.error)}, {"at", to_json(recorded, report.steps)}}},
      {"average",
       {{"largest_error", error(report.average.error)},
        {"at", to_json(recorded, report.average)},
        {"distance_to_center", report.distance_to_center}}}};
  if (recorded.distance_to_center) {
    json["average"]["recorded_distance_to_center"] = *recorded.distance_to_center;
  }
  json["buckets"] = {
      {"count", report.num_buckets},
      {"compared", report.buckets_compared},
      {"difference",
       report.bucket_difference.empty() ? Json(nullptr) : Json(report.bucket_difference)}};
  json["world_size"] = recorded.world_size;
  json["backend"] = arguments.backend;
  json["optimizer"] = recorded.optimizer;
  json["device"] = arguments.device;
  json["simd"] = name_of(arguments.options.simd);
  json["threads"] = arguments.options.num_threads;
  return json;
}

void print(const RecordedCase& recorded, const ReplayReport& report,
           const ReplayArguments& arguments) {
  std::cout << recorded.name << ": " << recorded.world_size << " ranks (" << arguments.backend
            << "), " << recorded.steps << " steps, " << recorded.parameters.size()
            << " parameters, " << recorded.optimizer << ", "
            << (arguments.device == "cpu" ? name_of(arguments.options.simd) : arguments.device)
            << "\n";
  std::cout << "  buckets         " << report.num_buckets << ", ";
  if (!report.buckets_compared) {
    std::cout << "not compared: another size was asked for\n";
  } else {
    std::cout << (report.bucket_difference.empty() ? "cut as recorded" : report.bucket_difference)
              << "\n";
  }
  const auto line = [&](std::string_view what, const Deviation& at) {
    std::cout << what << at.error;
    if (at.error > 0.0) std::cout << "  (" << where(recorded, at) << ")";
    std::cout << "\n";
  };
  line("  largest error   ", report.steps);
  line("  in the average  ", report.average);
  std::cout << "  distance from rank 0 to the average " << report.distance_to_center;
  if (recorded.distance_to_center) std::cout << ", recorded " << *recorded.distance_to_center;
  const bool passed = report.passed(arguments.options.tolerance);
  std::cout << "\n  " << (passed ? "holds" : "does not hold") << " (tolerance "
            << arguments.options.tolerance << ")\n";
}

/// Fills in what this machine decides, and reads the case. It may fail on one rank alone: for want
/// of a GPU, of vector instructions, or of the files.
RecordedCase prepare(ReplayArguments& arguments) {
  arguments.options.simd = simd_path_of(arguments.simd);
  arguments.options.device = parse_device(arguments.device);
  static_cast<void>(make_stream(arguments.options.device));
  if (arguments.bucket_bytes > 0) arguments.options.bucket_bytes = arguments.bucket_bytes;
  return read_recorded_case(arguments.folder);
}

int replay_case(ReplayArguments arguments) {
  const Start start = plan_ranks(arguments.ranks);
  if (const auto code = run_processes(start)) return *code;
  LaunchConfig& config = arguments.ranks.launch;
  arguments.backend = start.is_rank ? "tcp" : config.backend;
  RecordedCase recorded;
  std::exception_ptr failure;
  try {
    recorded = prepare(arguments);
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  if (arguments.backend == "threads" && !failure) {
    config.options.num_ranks = recorded.world_size;
    config.options.node_size = recorded.local_world_size;
  }
  const auto body = [&](Communicator& communicator) {
    all_or_none(communicator, [&] {
      if (failure) std::rethrow_exception(failure);
      return true;
    });
    agree(communicator, "their case",
          concat("ranks: ", recorded.world_size, "\nsteps: ", recorded.steps,
                 "\nparameters: ", recorded.parameters.size()));
    const ReplayReport report = replay(communicator, recorded, arguments.options);
    if (communicator.rank() == 0) {
      if (arguments.json) {
        std::cout << to_json(recorded, report, arguments).dump() << std::endl;
      } else {
        print(recorded, report, arguments);
      }
    }
    return static_cast<int>(report.passed(arguments.options.tolerance) ? ExitCode::kDone
                                                                       : ExitCode::kCheckFailed);
  };
  return launch_as(start, config, [&](Communicator& communicator, const World& world) {
    return exit_together(world, [&] { return body(communicator); });
  });
}

}  // namespace

void add_replay_command(CLI::App& program, int& exit_code) {
  auto arguments = std::make_shared<ReplayArguments>();
  CLI::App* command = program.add_subcommand(
      "replay", "Repeat a recorded run with its gradients and compare every parameter");
  command
      ->add_option("case", arguments->folder, "Folder of the recorded case (docs/design/replay.md)")
      ->required()
      ->type_name("CASE_DIR");
  add_rank_options(*command, arguments->ranks);
  command
      ->add_option("--tolerance", arguments->options.tolerance,
                   "Largest absolute difference allowed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--bucket-bytes", arguments->bucket_bytes,
                   "Bytes at which a bucket closes; as recorded when not given")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 50));
  command->add_option("--device", arguments->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->add_option("--simd", arguments->simd, "Vector path: auto, baseline, avx2, avx512")
      ->check(CLI::IsMember({"auto", "baseline", "avx2", "avx512"}));
  command
      ->add_option("--threads", arguments->options.num_threads,
                   "Threads of each rank that share mixing and update")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--json", arguments->json, "One JSON object on stdout");
  command->footer(
      "Exit code 0: within the tolerance; 1: a difference is too large, or the buckets or the\n"
      "distance from rank 0 to the mean differ from the record.\n"
      "Examples:\n"
      "  gossamer replay cases/accum_adamw_ring_n4\n"
      "  mpirun -n 4 gossamer replay cases/accum_adamw_ring_n4 --simd avx2 --json\n"
      "  gossamer replay cases/accum_adamw_ring_n4 --processes 4");
  command->callback([arguments, &exit_code] { exit_code = replay_case(*arguments); });
}

}  // namespace gossamer::apps

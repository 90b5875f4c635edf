// gossamer train CONFIG.yaml [key.sub=value ...]

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/commands/command_options.hpp"
#include "apps/commands/commands.hpp"
#include "apps/records/environment.hpp"
#include "apps/records/report.hpp"
#include "apps/records/topology_report.hpp"
#include "apps/train/advice.hpp"
#include "apps/train/agreement.hpp"
#include "apps/train/checkpointer.hpp"
#include "apps/train/compute_threads.hpp"
#include "apps/train/device_choice.hpp"
#include "apps/train/local_processes.hpp"
#include "apps/train/rank_setup.hpp"
#include "apps/train/resume.hpp"
#include "apps/train/run_config.hpp"
#include "apps/train/start_command.hpp"
#include "apps/train/start_store.hpp"
#include "apps/train/stop_signals.hpp"
#include "apps/train/training_loop.hpp"
#include "base/make_stream.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"
#include "comm/backends.hpp"

namespace gossamer::apps {
namespace {

constexpr std::string_view kAuto = "auto";

struct TrainArguments {
  std::string config_path;
  std::vector<std::string> overrides;
  int num_ranks = 0;
  StartOptions start;
  bool dry_run = false;
  bool overwrite = false;
  /// The value of --resume: empty, `auto`, or the folder of a run.
  std::string resume;
  /// The value of --reshape: empty or `average`.
  std::string reshape;
  /// Empty: the configuration says it.
  std::string timeline;
  std::string timeline_steps;
  PlugIns own;
  /// The versions of the libraries, one line each.
  std::string versions;
};

/// The file with its overrides, or the error of reading it. Errors are thrown later, because all
/// ranks must leave together.
struct Source {
  YamlNode tree;
  std::optional<ConfigError> error;
  LaunchConfig launch;
};

Source read_source(const TrainArguments& arguments) {
  Source source;
  source.launch.backend = default_backend();
  source.launch.options.num_ranks = arguments.num_ranks;
  try {
    const bool named = !arguments.resume.empty() && arguments.resume != kAuto;
    if (arguments.config_path.empty() && !named) {
      throw ConfigError("command line", "config", "is missing; give CONFIG.yaml, or --resume RUN");
    }
    source.tree = read_yaml_file(arguments.config_path.empty() ? arguments.resume + "/config.yaml"
                                                               : arguments.config_path);
    if (named) apply_override(source.tree, "run.output_dir=" + quoted_text(arguments.resume));
    for (const std::string& text : arguments.overrides) apply_override(source.tree, text);
    if (!arguments.timeline.empty()) {
      apply_override(source.tree, "log.timeline=" + quoted_text(arguments.timeline));
    }
    if (const auto steps = parse_timeline_steps(arguments.timeline_steps)) {
      apply_override(source.tree,
                     concat("log.timeline_steps=[", steps->begin, ", ", steps->end, "]"));
    }
    LaunchConfig launch = read_comm_config(Options(source.tree), arguments.own).launch;
    launch.options.num_ranks = arguments.num_ranks;
    source.launch = std::move(launch);
  } catch (const ConfigError& error) {
    source.error = error;
  }
  return source;
}

void print_dry_run(const RunConfig& config, const TrainingLoop& trainer, double loss) {
  std::cout << "# configuration, defaults included\n" << to_yaml(config.resolved);
  const bool has_phases = config.phases.size() > 1;
  std::cout << (has_phases ? "\n# phases: " : "\n# algorithm: ")
            << (has_phases ? describe(config.phases) : config.exchange.algorithm.name()) << "\n";
  for (const RunPhase& phase : config.phases) {
    for (const bool is_sparse : {false, true}) {
      const auto topology = phase.method_with(is_sparse && phase.control).topology;
      if (!topology || (is_sparse && !phase.control)) continue;
      std::cout << "# rounds of " << topology->name() << "\n" << describe_rounds(*topology);
    }
  }
  std::cout << "\n# buckets" << (config.bucket_bytes == 0 ? " until other sizes are tried" : "")
            << "\n"
            << describe(trainer.model().engine().plan(), trainer.model().engine().parameters());
  std::cout << "\n# one forward and backward on one batch: loss " << shortest(loss) << "; "
            << trainer.total_steps() << " steps would follow\n"
            << std::flush;
}

class TrainRun {
 public:
  /// `stop` may be null.
  TrainRun(const TrainArguments& arguments, const Source& source, const Start& start,
           const StopSignals* stop)
      : arguments_(arguments), source_(source), start_(start), stop_(stop) {}

  /// Loads data and libraries, so that the others do not wait for them. Throws ConfigError and
  /// DataError.
  void load_before_joining() {
    const RunConfig config = read_config(World{}, /*is_other=*/true);
    load_torch_for(config.device, num_gpus());
    static_cast<void>(data_.get(config));
  }

  /// What a process that joins the run must have in common with it. Empty where the configuration
  /// has a fault, which is thrown later.
  [[nodiscard]] std::string what_joins_must_share() const {
    try {
      return shared_lines(read_config(World{}, /*is_other=*/true));
    } catch (const ConfigError&) {
      return "";
    }
  }

  /// While it waits to be let in: throws CommError when it has been told to stop. Later the others
  /// hear of it, and all ranks stop.
  void heed_signals() const {
    const int caught = stop_ != nullptr && !has_joined_ ? stop_->caught() : 0;
    if (caught == 0) return;
    throw CommError({.label = {.what = "joining"},
                     .code = caught == SIGINT ? ExitCode::kInterrupted : ExitCode::kTerminated},
                    "told to stop before the others had let this process in");
  }

  /// The work of every rank.
  int operator()(Communicator& communicator, const World& world) {
    return exit_together(world, [&] {
      if (start_.joins) {
        // The others go on where this rank cannot.
        rank_local([&] { join(communicator, world); });
      } else {
        run(communicator, world);
      }
      return static_cast<int>(ExitCode::kDone);
    });
  }

 private:
  /// `is_other`: the world may be another one than the configuration was made for.
  [[nodiscard]] RunConfig read_config(const World& world, bool is_other) const {
    if (source_.error) throw ConfigError(*source_.error);
    return read_run_config(Options(source_.tree), world, arguments_.config_path, arguments_.own,
                           is_other);
  }

  /// The work of a rank that joins others that train.
  void join(Communicator& communicator, const World& world) {
    heed_signals();
    has_joined_ = true;
    const RunConfig config = read_config(world, /*is_other=*/true);
    set_compute_threads(config, world, nullptr);
    seed_generator(config.seed, world, "tcp");
    TrainingLoop trainer(config, {.communicator = communicator,
                                  .world = world,
                                  .logger = Logger(config.comm.log_level(), "joining"),
                                  .data = data_.get(config),
                                  .stop = stop_,
                                  .saves_checkpoints = true,
                                  .joins = true,
                                  .resume_command = command_of_start()});
    trainer.run(nullptr);
    write_report(trainer, config, Logger(config.comm.log_level(), ""));
  }

  void run(Communicator& communicator, const World& world) {
    // Ranks may be lost before the first step.
    const bool has_changed =
        communicator.is_elastic() && communicator.elastic()->membership().epoch > 0;
    RunConfig config = all_or_none(communicator, [&] {
      RunConfig read = read_config(world, has_changed);
      // Before anything that takes long.
      if (world.rank == 0 && !arguments_.dry_run && arguments_.resume.empty()) {
        check_run_folder(read.output_dir, if_finished(read));
      }
      load_torch_for(read.device, num_gpus());
      return read;
    });
    agree(communicator, "their configuration", lines_of(config.resolved));
    const Logger logger(config.comm.log_level(), world.size > 1 ? concat("rank ", world.rank) : "");
    const auto share = set_compute_threads(config, world, &communicator);
    seed_generator(config.seed, world, start_.is_rank ? "tcp" : source_.launch.backend);
    if (world.rank == 0) warn(config, logger);
    const auto data = load_together(communicator, data_, config);
    std::vector<std::string> faults;
    std::string checkpoint;
    if (!arguments_.dry_run && !arguments_.resume.empty()) {
      checkpoint = all_or_none_slow(communicator, [&] {
        return world.rank == 0 ? find_checkpoint(config, world, logger, faults) : "";
      });
      checkpoint = communicator.all_gather(checkpoint).front();
    }
    if (searches(config) && !checkpoint.empty()) {
      config.output_dir = std::filesystem::path(checkpoint).parent_path().parent_path().string();
      set_output_dir(config.resolved, config.output_dir);
    }
    TrainingLoop trainer(config, {.communicator = communicator,
                                  .world = world,
                                  .logger = logger,
                                  .data = data,
                                  .dry_run = arguments_.dry_run,
                                  .stop = stop_,
                                  .saves_checkpoints = true,
                                  .resumes = !checkpoint.empty(),
                                  .reshapes = !checkpoint.empty() && !arguments_.reshape.empty(),
                                  .faults = faults,
                                  .resume_command = command_of_start()});
    if (arguments_.dry_run) {
      const double loss = rank_local([&] { return trainer.train_step().item<double>(); });
      if (world.rank == 0) print_dry_run(config, trainer, loss);
      trainer.close();
      return;
    }
    const Json environment = describe_environment(communicator, world, arguments_.versions);
    auto folder = all_or_none_slow(communicator, [&]() -> std::unique_ptr<RunFolder> {
      if (world.rank != 0) return nullptr;
      return std::make_unique<RunFolder>(
          config.output_dir, config.resolved,
          checkpoint.empty() ? if_finished(config) : IfFinished::kContinue, environment);
    });
    if (folder) {
      if (share) logger.info(share->reason);
      greet(config, *folder, world, trainer, logger, checkpoint);
    }
    trainer.run(std::move(folder), checkpoint);
    write_report(trainer, config, logger);
  }

  /// The run is done and saved, so a page that cannot be written costs a warning.
  void write_report(const TrainingLoop& trainer, const RunConfig& config,
                    const Logger& logger) const {
    if (trainer.folder() == nullptr || !config.report) return;
    try {
      apps::write_report(trainer.folder()->path(), arguments_.own);
    } catch (const std::exception& error) {
      logger.warning(concat("the report could not be written: ", error.what()));
    }
  }

  /// As TrainingLoop::Setup::resume_command.
  [[nodiscard]] std::function<std::string(const std::string& resume, int size)> command_of_start()
      const {
    if (!start_.is_rank) return nullptr;
    return [options = arguments_.start, start = start_](const std::string& resume, int size) {
      return command_to_start(resume, size, options, start, &std::getenv);
    };
  }

  /// True if `--resume auto` has to find the run, because its folder was not named.
  [[nodiscard]] bool searches(const RunConfig& config) const {
    return arguments_.resume == kAuto && !config.output_dir_given;
  }

  /// The checkpoint to continue from; empty: none. Throws CheckpointError.
  [[nodiscard]] std::string find_checkpoint(const RunConfig& config, const World& world,
                                            const Logger& logger,
                                            std::vector<std::string>& faults) const {
    if (searches(config)) return search_checkpoint(config, world, logger, faults);
    const std::string path = newest_of(config.output_dir, logger, faults);
    if (path.empty()) {
      if (arguments_.resume == kAuto) return "";
      throw CheckpointError(
          concat(checkpoint_folder(config.output_dir), " holds no checkpoint to continue from"));
    }
    for (const std::string& change :
         check_resumable(read_manifest(path), config, world, path, !arguments_.reshape.empty())) {
      logger.warning(concat("other than in the checkpoint: ", change));
    }
    return path;
  }

  /// The newest checkpoint of a run's folder that verifies; empty: none.
  static std::string newest_of(const std::string& folder, const Logger& logger,
                               std::vector<std::string>& faults) {
    return newest_checkpoint(checkpoint_folder(folder), [&](const std::string& error) {
      faults.push_back(concat(error, "; this checkpoint is left out"));
      logger.warning(faults.back());
    });
  }

  /// The newest checkpoint of an unfinished run of this configuration; empty: none. If there are
  /// such runs, but all of another number of ranks, throws the CheckpointError of the newest.
  [[nodiscard]] std::string search_checkpoint(const RunConfig& config, const World& world,
                                              const Logger& logger,
                                              std::vector<std::string>& faults) const {
    const bool reshapes = !arguments_.reshape.empty();
    std::optional<CheckpointError> refusal;
    for (const std::string& folder : unfinished_runs(config.output_dir)) {
      std::vector<std::string> left_out;
      const std::string path = newest_of(folder, logger, left_out);
      if (path.empty()) continue;
      const Manifest manifest = read_manifest(path);
      const std::string difference = first_difference(manifest, config, reshapes);
      if (!difference.empty()) {
        logger.warning(concat(folder, " holds an unfinished run of another configuration: ",
                              difference, "; to continue that run, type --resume ", folder));
        continue;
      }
      try {
        check_resumable(manifest, config, world, path, reshapes);
        faults = left_out;
        return path;
      } catch (const CheckpointError& error) {
        if (!refusal) refusal = error;
      }
    }
    if (refusal) throw CheckpointError(*refusal);
    return "";
  }

  [[nodiscard]] IfFinished if_finished(const RunConfig& config) const {
    if (arguments_.overwrite) return IfFinished::kReplace;
    // The user has not asked for this very folder where its name follows from the file's.
    return config.output_dir_given ? IfFinished::kRefuse : IfFinished::kNextNumber;
  }

  static void warn(const RunConfig& config, const Logger& logger) {
    const std::string warning = config.model->warning();
    if (!warning.empty()) logger.warning(warning);
  }

  static void greet(const RunConfig& config, const RunFolder& folder, const World& world,
                    const TrainingLoop& trainer, const Logger& logger,
                    const std::string& checkpoint) {
    for (const std::string& remark : folder.remarks()) logger.warning(remark);
    if (!checkpoint.empty()) {
      logger.info(concat("continues from ", checkpoint));
    } else if (folder.replaces_earlier_run()) {
      logger.warning(concat("the run that was in ", folder.path(),
                            " is replaced when this one has its first ",
                            config.comm.survives() ? "step" : "record"));
    }
    logger.info(concat(describe(config.phases), ", ", world.size,
                       world.size == 1 ? " rank, " : " ranks, ", trainer.total_steps(),
                       " steps, into ", folder.path()));
    const std::string advice = advice_at_start(config);
    if (!advice.empty() && world.size > 1) logger.warning(advice);
  }

  const TrainArguments& arguments_;
  const Source& source_;
  const Start& start_;
  const StopSignals* stop_;
  std::atomic<bool> has_joined_ = false;
  SharedData data_;
};

int train(const TrainArguments& arguments) {
  const Source source = read_source(arguments);
  const Start start = plan_own_start(arguments.start, source.launch, source.error);
  if (source.launch.options.fault.survives && !start.is_rank && start.num_processes == 0 &&
      source.launch.backend != "threads") {
    throw ConfigError(
        "fault.mode: survive needs ranks that are processes of the backend tcp (--processes N, "
        "--rendezvous, torchrun or srun) or threads (--ranks N); with MPI all ranks end together, "
        "allowed: abort");
  }
  if (const auto code = run_processes(start, /*listens=*/true)) return *code;
  // Before any other thread starts. A dry run has nothing to bring to an orderly end.
  std::optional<StopSignals> stop;
  if (!arguments.dry_run) stop.emplace();
  TrainRun run(arguments, source, start, stop ? &*stop : nullptr);
  LaunchConfig launch = source.launch;
  if (launch.options.fault.survives) launch.options.fault.trains = run.what_joins_must_share();
  if (start.joins) {
    run.load_before_joining();
    launch.options.while_waiting = [&run] { run.heed_signals(); };
  }
  return launch_as(start, launch, std::ref(run));
}

}  // namespace

void add_train_command(CLI::App& program, int& exit_code, const PlugIns& own) {
  auto arguments = std::make_shared<TrainArguments>();
  arguments->own = own;
  CLI::App* command = program.add_subcommand("train", "Train a model as a YAML file says");
  command->add_option("config", arguments->config_path, "The run's configuration")
      ->type_name("CONFIG.yaml");
  command->add_option("overrides", arguments->overrides, "Values that replace those of the file")
      ->type_name("key.sub=value");
  command
      ->add_option("--ranks", arguments->num_ranks,
                   "Run this many worker threads in one process, without mpirun")
      ->check(CLI::Range(1, 4096));
  add_start_options(*command, arguments->start);
  command->add_flag("--dry-run", arguments->dry_run,
                    "One forward and backward without an update; prints the configuration, the "
                    "topology's rounds and the buckets");
  command->add_flag("--overwrite", arguments->overwrite,
                    "Replace the finished run that run.output_dir holds");
  command
      ->add_option("--resume", arguments->resume,
                   "Continue from the newest checkpoint: of the run in a folder, by its own "
                   "configuration unless one is given; or `auto`, of the run in run.output_dir if "
                   "there is one, and where run.output_dir is not given, of the newest unfinished "
                   "run of this configuration in runs/NAME, runs/NAME-2 and so on")
      ->type_name("RUN|auto");
  command
      ->add_option("--reshape", arguments->reshape,
                   "With --resume: continue with another number of ranks or another topology; all "
                   "ranks begin with the mean of the saved states")
      ->check(CLI::IsMember({"average"}))
      ->type_name("average")
      ->needs("--resume");
  command
      ->add_option("--join", arguments->start.join,
                   "Join a run of this configuration that goes on, where its ranks have met; it "
                   "must have fault.mode: survive")
      ->type_name("HOST:PORT|file:FOLDER|etcd:ADDRESSES")
      ->excludes("--processes", "--rendezvous", "--dry-run", "--resume", "--overwrite", "--ranks");
  add_timeline_options(*command, arguments->timeline, arguments->timeline_steps);
  command->footer(
      "Examples:\n"
      "  mpirun -n 4 gossamer train configs/quickstart.yaml\n"
      "  gossamer train configs/quickstart.yaml --ranks 4 topology.name=ring "
      "run.steps=100\n"
      "  gossamer train configs/quickstart.yaml --processes 4\n"
      "  gossamer train configs/quickstart.yaml --rendezvous host1:29500 --world-size 4\n"
      "  gossamer train configs/quickstart.yaml --join host1:29500 fault.mode=survive\n"
      "  gossamer train --resume runs/quickstart --ranks 4\n"
      "  gossamer train --resume runs/quickstart --reshape average --ranks 2");
  command->callback([arguments, &program, &exit_code] {
    arguments->versions = program.version();
    // After --resume RUN the first word may be an override.
    if (arguments->config_path.find('=') != std::string::npos) {
      arguments->overrides.insert(arguments->overrides.begin(),
                                  std::exchange(arguments->config_path, ""));
    }
    exit_code = train(*arguments);
  });
}

}  // namespace gossamer::apps

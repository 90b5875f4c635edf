#include "apps/train/run_config.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "apps/train/parameter_groups.hpp"
#include "apps/train/sections.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "comm/start/secret.hpp"
#include "comm/tcp/stream_count.hpp"
#include "core/algorithms/algorithm.hpp"

namespace gossamer::apps {
namespace {

/// Reads `never`, `500` (steps) or `15 minutes`.
void read_checkpoints(const Options& run, RunConfig::Checkpoints& checkpoints) {
  constexpr std::string_view kKey = run_section::kCheckpointEvery.name;
  constexpr std::string_view kUnit = " minutes";
  checkpoints.given = run.has(kKey);
  checkpoints.keep = run.read(run_section::kKeep);
  checkpoints.must_succeed = run.read(run_section::kCheckpointFailure) == "end";
  const std::string text = run.read(run_section::kCheckpointEvery);
  if (text == "never") return;
  bool good = false;
  if (text.ends_with(kUnit)) {
    const std::string number = text.substr(0, text.size() - kUnit.size());
    good = parse_whole(number, checkpoints.every_minutes) && checkpoints.every_minutes > 0.0 &&
           checkpoints.every_minutes <= 1e6;
  } else {
    good = parse_whole(text, checkpoints.every_steps) && checkpoints.every_steps > 0 &&
           checkpoints.every_steps <= kMaxCount;
  }
  if (!good) {
    run.fail(kKey, concat(text, " is none, allowed: a number of steps, as 500; a time, as ",
                          "15 minutes; or never"));
  }
}

void read_run(const Options& run, const std::string& config_path, RunConfig& config) {
  config.seed = static_cast<std::uint64_t>(run.read(run_section::kSeed));
  // Steps win, so that a file that counts in epochs can be shortened on the command line.
  config.steps = run.read(run_section::kSteps);
  config.epochs = run.read(run_section::kEpochs);
  const auto folder = std::filesystem::path("runs") / std::filesystem::path(config_path).stem();
  PathOption output_dir = run_section::kOutputDir;
  output_dir.rule.fallback = folder.native();
  config.output_dir = run.read(output_dir);
  config.output_dir_given = run.has(output_dir.name);
  if (config.output_dir.empty())
    run.fail(output_dir.name, "is empty, allowed: the path of a folder");
  config.threads = run.read(run_section::kThreads);
  read_checkpoints(run, config.checkpoints);
}

void check_takes(const Options& model, const std::string& model_name, const std::string& data_name,
                 SampleKind gives) {
  const auto fits = [gives](const ModelEntry& entry) {
    return entry.takes.value_or(gives) == gives;
  };
  if (fits(find_model(model_name))) return;
  std::vector<std::string> fitting;
  for (const ModelEntry& entry : model_table()) {
    if (fits(entry)) fitting.emplace_back(entry.name);
  }
  model.fail("name", concat(model_name, " does not take ", name_of(gives), ", which data.name ",
                            data_name, " gives, allowed: ", join(fitting, ", ")));
}

void read_model_and_data(const Options& root, RunConfig& config) {
  const Options model = root.section("model");
  const std::string model_name = model.read(model_section::kName);
  config.model = configure_model(model_name, model);
  config.model_init = model.read(model_section::kInit);
  config.model_init_partial = model.read(model_section::kInitPartial);
  const Options data = root.section("data");
  const std::string name = data.read(data_section::kName);
  config.data = configure_dataset(name, data);
  const SampleKind gives = find_dataset(name).gives;
  check_takes(model, model_name, name, gives);
  config.batch_size = data.read(data_section::kBatchSize);
  config.prefetch = data.read(data_section::kPrefetch);
  config.dirichlet_alpha = data.read(data_section::kDirichletAlpha);
  config.augmentation.crop = data.read(data_section::kCrop);
  config.augmentation.flip = data.read(data_section::kFlip);
  if (gives == SampleKind::kArrays) return;
  if (config.dirichlet_alpha) {
    data.fail("dirichlet_alpha", "deals samples out by label, and text has none, allowed: null");
  }
  if (config.augmentation.crop > 0) data.fail("crop", "is for images, allowed for text: 0");
  if (config.augmentation.flip) data.fail("flip", "is for images, allowed for text: false");
}

/// A rank that joins a run (`joins`) has no world yet, so all topologies fit.
void read_communication(const Options& root, const World& world, const PlugIns& own, bool joins,
                        RunConfig& config) {
  const auto fallback = *fault_section::kFallbackTopology.rule.fallback;
  config.phases = read_phases(root, world, own, joins ? std::string(fallback) : "");
  config.exchange = config.phases.front().method.after({});
}

/// Why the algorithms of the phases cannot run with what `config` has so far; empty: they can. Each
/// section asks anew, so that a reason stands at the key that has brought it.
std::string why_not(const RunConfig& config) {
  for (const RunPhase& phase : config.phases) {
    for (const bool is_sparse : {false, phase.control.has_value()}) {
      const ExchangeOptions exchange = phase.method_with(is_sparse).after(config.exchange);
      AlgorithmSetting setting = exchange.setting();
      setting.optimizer = config.optimizer.get();
      setting.group_optimizers = optimizers_of(config.parameter_groups);
      setting.is_elastic = config.comm.survives();
      std::string reason = exchange.algorithm.why_not(setting);
      if (!reason.empty()) return reason;
    }
  }
  return "";
}

/// Needs the phases and the optimizer.
void read_comm(const Options& root, const PlugIns& own, RunConfig& config) {
  config.comm = read_comm_config(root, own);
  std::string reason = why_not(config);
  if (!reason.empty()) root.section("fault").fail(fault_section::kMode.name, reason);
  config.exchange.codec = config.comm.codec;
  config.exchange.shares_memory = config.comm.launch.shares_memory;
  reason = why_not(config);
  if (!reason.empty()) root.section("comm").fail(kCodecName.name, reason);
  config.phases_in = [root, own, fallback = config.comm.fallback_topology](const World& world) {
    return read_phases(root, world, own, fallback);
  };
}

/// Needs the phases.
void read_optimizer(const Options& root, const PlugIns& own, RunConfig& config) {
  const Options optimizer = root.section("optimizer");
  const std::string name =
      optimizer.read(kOptimizerName, kOptimizerName.rule.fallback, optimizer_names(own.optimizers));
  config.lr = optimizer.read(optimizer_section::kLr);
  config.weight_decay = optimizer.read(optimizer_section::kWeightDecay);
  config.decay_bias_and_norm = optimizer.read(optimizer_section::kDecayBiasAndNorm);
  config.optimizer = make_optimizer(name, optimizer, own.optimizers);
  config.parameter_groups = read_parameter_groups({.options = optimizer,
                                                   .name = name,
                                                   .optimizer = *config.optimizer,
                                                   .lr = config.lr,
                                                   .own = own.optimizers});

  const std::string reason = why_not(config);
  if (!reason.empty()) optimizer.fail("name", concat(name, ": ", reason));

  config.schedule_options = root.section("lr_schedule");
  config.schedule_name = config.schedule_options.read(schedule_section::kName);
  // Made again with the real number of steps once the data is known; this checks the keys.
  static_cast<void>(config.make_schedule(1));
}

void read_buckets(const Options& buckets, RunConfig& config) {
  const auto size_mb = buckets.read(kBucketSizeMb);
  if (!size_mb && config.device.graph) {
    buckets.fail(
        "size_mb",
        "is auto, which moves the parameters while sizes are tried, and device.graph needs "
        "them in their places, allowed: a number > 0");
  }
  constexpr double kMib = 1024.0 * 1024.0;
  config.bucket_bytes = std::max(static_cast<std::int64_t>(size_mb.value_or(0.0) * kMib),
                                 std::int64_t{size_mb ? 1 : 0});
}

void read_train(const Options& train, RunConfig& config) {
  const bool scales = config.device.precision == Precision::kFp16;
  const bool given = train.has("nonfinite");
  config.gradients.nonfinite = nonfinite(train.read(kNonfinite, scales ? "skip" : "abort"));
  if (scales && given && config.gradients.nonfinite != NonFinite::kSkip) {
    train.fail("nonfinite",
               "is abort, but with device.precision: fp16 the loss is scaled until gradients "
               "overflow now and then, allowed: skip");
  }
  if (scales && config.device.graph) {
    train.fail("nonfinite",
               "device.precision: fp16 scales the loss, which device.graph cannot do; "
               "allowed: device.graph: false");
  }
  read_clipping(train, config.gradients);
  config.loss = train.read(train_section::kLoss);
  config.accumulate = train.read(train_section::kAccumulate);
  if (config.accumulate > 1 && config.device.graph) {
    train.fail("accumulate", "is more than 1, which device.graph cannot do, allowed: 1");
  }
  config.ema = train.read(train_section::kEma);
  config.stops_diverged = train.read(train_section::kDiverged) == "stop";
  config.patience = train.read(train_section::kPatience);
  if (config.patience > 0 && config.eval_every == 0) {
    train.fail("patience", "counts evaluations, and log.eval_every is 0, allowed: 0");
  }
}

void read_log(const Options& log, RunConfig& config) {
  config.progress = log.read(log_section::kProgress);
  config.log_every = log.read(log_section::kEvery);
  config.consensus_every = log.read(log_section::kConsensusEvery);
  config.eval_every = log.read(log_section::kEvalEvery);
  config.tensorboard = log.read(log_section::kTensorboard);
  config.timeline = log.read(log_section::kTimeline);
  if (const auto steps = log.read(log_section::kTimelineSteps)) {
    config.timeline_steps = {.begin = steps->first, .end = steps->second};
    if (config.timeline.empty()) {
      log.fail("timeline_steps", "is given without log.timeline, allowed: null, or both");
    }
  }
  config.report = log.read(log_section::kReport);
}

/// Refuses what asynchronous ranks cannot do. Needs all sections.
void check_asynchronous(const Options& root, const RunConfig& config) {
  const auto is_asynchronous = [](const RunPhase& phase) {
    return phase.method.algorithm.entry().asynchronous();
  };
  const auto found = std::ranges::find_if(config.phases, is_asynchronous);
  if (found == config.phases.end()) return;
  const std::string name = found->method.algorithm.name();
  const auto refuse = [&](const char* section, const char* key, const char* text) {
    root.section(section).fail(key, concat(text, name));
  };
  if (config.phases.size() > 1) {
    refuse("algorithm", "phases",
           "all ranks begin a phase after the same step; allowed: none with ");
  }
  if (found->control) {
    refuse("algorithm", "consensus_control",
           "all ranks change the topology after the same step; allowed: none with ");
  }
  if (config.bucket_bytes == 0) {
    refuse("buckets", "size_mb",
           "is auto, and the ranks try sizes together, step by step; allowed: a number with ");
  }
  if (!config.timeline.empty()) {
    refuse("log", "timeline", "records the same steps of all ranks; allowed: none with ");
  }
  if (config.ema) {
    refuse("train", "ema",
           "is a mean over steps, of which the ranks make different numbers; allowed: null with ");
  }
}

/// Refuses what a run that goes on when ranks die cannot do. Needs all sections.
void check_survival(const Options& root, const RunConfig& config) {
  if (!config.comm.survives()) return;
  const auto refuse = [&](std::string_view section, std::string_view key, std::string_view text) {
    root.section(section).fail(key, concat(text, " with fault.mode: survive"));
  };
  if (config.device.name == "auto") {
    refuse("device", "name",
           "is auto, and a rank that joins could not know whether the others have GPUs, allowed: "
           "cpu or cuda");
  }
  if (config.device.graph) {
    refuse("device", "graph",
           "is true, and a recorded CUDA graph cannot change when ranks are lost, allowed: false");
  }
  if (config.device.precision == Precision::kFp16) {
    refuse("device", "precision",
           "is fp16, whose loss scale would differ between ranks, allowed: float32 or bf16");
  }
  if (config.bucket_bytes == 0) {
    refuse("buckets", "size_mb",
           "is auto, which moves all state while sizes are tried, allowed: a number");
  }
}

void read_fault(const Options& fault, CommConfig& config) {
  FaultOptions& options = config.launch.options.fault;
  options.survives = fault.read(fault_section::kMode) == "survive";
  options.min_ranks = fault.read(fault_section::kMinRanks).value_or(0);
  config.resync = fault.read(fault_section::kResync);
  config.scale_lr = fault.read(fault_section::kScaleLr);
  config.fallback_topology = fault.read(fault_section::kFallbackTopology);
  options.silence_s = fault.read(fault_section::kSilence);
}

void read_meeting(const Options& comm, LaunchConfig& config) {
  MeetingOptions& meeting = config.options.meeting;
  meeting.num_streams = static_cast<int>(comm.read(comm_section::kStreams).value_or(0));
  meeting.interface = comm.read(comm_section::kInterface);
  config.is_secured = comm.read(comm_section::kSecurity) == "secret";
  const std::string path = comm.read(comm_section::kSecretFile);
  if (path.empty()) return;
  if (!config.is_secured) {
    comm.fail("secret_file", "is given, and comm.security: none uses no secret, allowed: \"\"");
  }
  try {
    meeting.secret = read_secret_file(path);
  } catch (const ConfigError& error) {
    comm.fail("secret_file", error.what());
  }
}

void read_backend(const Options& comm, LaunchConfig& config) {
  // A program has backends or lacks them.
  std::vector<std::string> backends = backend_names();
  backends.insert(backends.begin(), "auto");
  config.backend =
      comm.read(comm_section::kBackend, comm_section::kBackend.rule.fallback, backends);
  config.is_auto = config.backend == "auto";
  if (config.is_auto) config.backend = default_backend();
  if (config.backend == "threads" && under_mpi_launcher()) {
    comm.fail("backend",
              "with threads, every process that mpirun has started would train a run of its own, "
              "allowed: mpi, or --ranks N without mpirun");
  }
}

}  // namespace

CommConfig read_comm_config(const Options& root, const PlugIns& own) {
  const Options comm = root.section("comm");
  CommConfig config;
  read_backend(comm, config.launch);
  config.launch.options.timeout_s = comm.read(kTimeout);
  config.launch.options.node_size = static_cast<int>(comm.read(kLocalSize));
  config.codec = find_codec(
      comm.read(kCodecName, kCodecName.rule.fallback, codec_names(own.codecs)), own.codecs);
  config.launch.shares_memory = comm.read(comm_section::kSharedMemory);
  read_meeting(comm, config.launch);
  read_fault(root.section("fault"), config);
  config.launch.options.log_level = log_level(root.section("log").read(log_section::kLevel));
  return config;
}

std::shared_ptr<const Schedule> RunConfig::make_schedule(std::int64_t total_steps) const {
  return gossamer::make_schedule(schedule_name, {lr, total_steps}, schedule_options);
}

RunConfig read_run_config(const Options& root, const World& world, const std::string& config_path,
                          const PlugIns& own, bool joins) {
  RunConfig config;
  read_run(root.section("run"), config_path, config);
  config.device = read_device_choice(root.section("device"));
  read_model_and_data(root, config);
  read_communication(root, world, own, joins, config);
  read_optimizer(root, own, config);
  read_buckets(root.section("buckets"), config);
  read_comm(root, own, config);
  read_log(root.section("log"), config);
  read_train(root.section("train"), config);
  check_asynchronous(root, config);
  check_survival(root, config);
  root.reject_unknown();
  config.resolved = root.resolved();
  return config;
}

}  // namespace gossamer::apps

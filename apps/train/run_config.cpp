#include "apps/train/run_config.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "apps/models/losses.hpp"
#include "apps/train/parameter_groups.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "comm/start/secret.hpp"
#include "comm/tcp/stream_count.hpp"
#include "core/algorithms/algorithm.hpp"

namespace gossamer::apps {
namespace {

constexpr std::int64_t kMaxCount = 1'000'000'000;

/// Reads `never`, `500` (steps) or `15 minutes`.
void read_checkpoints(const Options& run, RunConfig::Checkpoints& checkpoints) {
  constexpr std::string_view kKey = "checkpoint_every";
  constexpr std::string_view kUnit = " minutes";
  checkpoints.given = run.has(kKey);
  checkpoints.keep = run.integer("keep", {.fallback = 3, .min = 1, .max = kMaxCount});
  checkpoints.must_succeed = run.choice("checkpoint_failure", {"warn", "end"}, "warn") == "end";
  const std::string text = run.text(kKey, "15 minutes");
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
  config.seed = static_cast<std::uint64_t>(run.integer("seed", {.fallback = 1, .min = 0}));
  // Steps win, so that a file that counts in epochs can be shortened on the command line.
  config.steps = run.optional_integer("steps", {.min = 1, .max = kMaxCount});
  config.epochs = run.integer("epochs", {.fallback = 1, .min = 1, .max = kMaxCount});
  const std::filesystem::path stem = std::filesystem::path(config_path).stem();
  config.output_dir = run.file_path("output_dir", (std::filesystem::path("runs") / stem).string());
  config.output_dir_given = run.has("output_dir");
  if (config.output_dir.empty()) run.fail("output_dir", "is empty, allowed: the path of a folder");
  config.threads = run.integer("threads", {.fallback = 0, .min = 0, .max = 4096});
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
  const std::string model_name = model.choice("name", model_names(), "mlp");
  config.model = configure_model(model_name, model);
  config.model_init = model.file_path("init", "");
  config.model_init_partial = model.flag("init_partial", false);
  const Options data = root.section("data");
  const std::string name = data.choice("name", dataset_names(), "glyphs");
  config.data = configure_dataset(name, data);
  const SampleKind gives = find_dataset(name).gives;
  check_takes(model, model_name, name, gives);
  config.batch_size = data.integer("batch_size", {.fallback = 32, .min = 1, .max = 1'000'000});
  config.prefetch = data.integer("prefetch", {.fallback = 2, .min = 0, .max = 1'000});
  config.dirichlet_alpha = data.optional_number("dirichlet_alpha", {.min = 1e-6, .max = 1e6});
  config.augmentation.crop = data.integer("crop", {.fallback = 0, .min = 0, .max = 10'000});
  config.augmentation.flip = data.flag("flip", false);
  if (gives == SampleKind::kArrays) return;
  if (config.dirichlet_alpha) {
    data.fail("dirichlet_alpha", "deals samples out by label, and text has none, allowed: null");
  }
  if (config.augmentation.crop > 0) data.fail("crop", "is for images, allowed for text: 0");
  if (config.augmentation.flip) data.fail("flip", "is for images, allowed for text: false");
}

constexpr const char* kFallbackTopology = "base-k";

/// A rank that joins a run (`joins`) has no world yet, so all topologies fit.
void read_communication(const Options& root, const World& world, bool joins, RunConfig& config) {
  config.phases = read_phases(root, world, joins ? kFallbackTopology : "");
  config.exchange = config.phases.front().method.after({});
}

/// Options of the training that stand in the sections `comm` and `fault` of a LaunchConfig.
struct BesideLaunch {
  const Codec* codec = nullptr;
  bool resync = true;
  bool scale_lr = false;
  std::string fallback_topology = {};
};

LaunchConfig read_launch_config(const Options& root, BesideLaunch& beside);

/// Needs the phases.
void take_launch_config(const Options& root, RunConfig& config) {
  BesideLaunch beside;
  const LaunchConfig launch = read_launch_config(root, beside);
  config.exchange.codec = beside.codec;
  config.comm_timeout_s = launch.options.timeout_s;
  config.survives = launch.options.fault.survives;
  config.resync = beside.resync;
  config.scale_lr = beside.scale_lr;
  config.phases_in = [root, fallback = beside.fallback_topology](const World& world) {
    return read_phases(root, world, fallback);
  };
  config.exchange.shares_memory = launch.shares_memory;
  for (const RunPhase& phase : config.phases) {
    for (const bool is_sparse : {false, phase.control.has_value()}) {
      const ExchangeOptions exchange = phase.method_with(is_sparse).after(config.exchange);
      const std::string reason = exchange.algorithm.why_not(exchange.setting());
      if (!reason.empty()) root.section("comm").fail("codec", reason);
    }
  }
}

/// Needs the phases.
void read_optimizer(const Options& root, RunConfig& config) {
  const Options optimizer = root.section("optimizer");
  const std::string name = optimizer.choice("name", optimizer_names(optimizer), "accum_adamw");
  config.lr = optimizer.number("lr", {.fallback = 1e-3, .min = 0.0});
  config.weight_decay = optimizer.number("weight_decay", {.fallback = 0.0, .min = 0.0});
  config.decay_bias_and_norm = optimizer.flag("decay_bias_and_norm", false);
  config.optimizer = make_optimizer(name, optimizer);
  config.parameter_groups = read_parameter_groups(
      {.options = optimizer, .name = name, .optimizer = *config.optimizer, .lr = config.lr});

  for (const RunPhase& phase : config.phases) {
    const std::string reason = phase.method.algorithm.why_not(
        {.topology = phase.method.topology.get(),
         .optimizer = config.optimizer.get(),
         .group_optimizers = optimizers_of(config.parameter_groups)});
    if (!reason.empty()) optimizer.fail("name", concat(name, ": ", reason));
  }

  config.schedule_options = root.section("lr_schedule");
  config.schedule_name = config.schedule_options.choice("name", schedule_names(), "constant");
  // Made again with the real number of steps once the data is known; this checks the keys.
  static_cast<void>(config.make_schedule(1));
}

void read_buckets(const Options& buckets, RunConfig& config) {
  const auto size_mb = buckets.number_or(
      "auto", "size_mb", {.fallback = 25.0, .min = 0.0, .max = 1e6, .above_min = true});
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
  config.gradients.nonfinite =
      nonfinite(train.choice("nonfinite", nonfinite_names(), scales ? "skip" : "abort"));
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
  config.loss = train.choice("loss", loss_names(), "auto");
  config.accumulate = train.integer("accumulate", {.fallback = 1, .min = 1, .max = 1'000'000});
  if (config.accumulate > 1 && config.device.graph) {
    train.fail("accumulate", "is more than 1, which device.graph cannot do, allowed: 1");
  }
  config.ema =
      train.optional_number("ema", {.min = 0.0, .max = 1.0, .above_min = true, .below_max = true});
  config.stops_diverged = train.choice("diverged", {"warn", "stop"}, "warn") == "stop";
  config.patience = train.integer("patience", {.fallback = 0, .min = 0, .max = kMaxCount});
  if (config.patience > 0 && config.eval_every == 0) {
    train.fail("patience", "counts evaluations, and log.eval_every is 0, allowed: 0");
  }
}

void read_log(const Options& log, RunConfig& config) {
  config.log_level = log_level(log.choice("level", log_level_names(), "info"));
  config.progress = log.choice("progress", {"auto", "bar", "lines"}, "auto");
  const IntegerRule count{.min = 0, .max = kMaxCount};
  const auto every = [&](std::string_view key, std::int64_t fallback) {
    return log.integer(key, {.fallback = fallback, .min = count.min, .max = count.max});
  };
  config.log_every = every("every", 10);
  config.consensus_every = every("consensus_every", 0);
  config.eval_every = every("eval_every", 0);
  config.tensorboard = log.flag("tensorboard", false);
  config.timeline = log.file_path("timeline", "");
  if (const auto steps = log.range("timeline_steps")) {
    config.timeline_steps = {.begin = steps->first, .end = steps->second};
    if (config.timeline.empty()) {
      log.fail("timeline_steps", "is given without log.timeline, allowed: null, or both");
    }
  }
  config.report = log.flag("report", true);
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
  if (!config.survives) return;
  const auto refuse = [&](std::string_view section, std::string_view key, std::string_view text) {
    root.section(section).fail(key, concat(text, " with fault.mode: survive"));
  };
  for (const RunPhase& phase : config.phases) {
    const std::string reason =
        phase.method.algorithm.why_not({.topology = phase.method.topology.get(), .renews = true});
    if (!reason.empty()) root.section("fault").fail("mode", reason);
  }
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

void read_fault(const Options& fault, FaultOptions& options, BesideLaunch& beside) {
  options.survives = fault.choice("mode", {"abort", "survive"}, "abort") == "survive";
  const double least =
      fault.number_or("majority", "min_ranks", {.min = 1.0, .max = 1e6}).value_or(0.0);
  if (least != std::floor(least)) {
    fault.fail("min_ranks", concat("is ", least, ", allowed: majority, or a whole number"));
  }
  options.min_ranks = static_cast<std::int64_t>(least);
  beside.resync = fault.flag("resync", true);
  beside.scale_lr = fault.flag("scale_lr", false);
  beside.fallback_topology = fault.choice(
      "fallback_topology", {"base-k", "complete", "random-matching", "ring"}, kFallbackTopology);
  options.silence_s = fault.number("silence_s", {.fallback = 10.0, .min = 0.1, .max = 3600.0});
}

/// 0: auto.
int read_num_streams(const Options& comm) {
  const double number =
      comm.number_or("auto", "streams", {.min = 1.0, .max = tcp::StreamCount::kMax}).value_or(0.0);
  if (number != std::floor(number)) {
    comm.fail("streams", concat("is ", number, ", allowed: auto, or a whole number from 1 to ",
                                tcp::StreamCount::kMax));
  }
  return static_cast<int>(number);
}

void read_meeting(const Options& comm, LaunchConfig& config) {
  config.options.meeting.num_streams = read_num_streams(comm);
  config.options.meeting.interface = comm.text("interface", "");
  config.is_secured = comm.choice("security", {"secret", "none"}, "secret") == "secret";
  const std::string path = comm.file_path("secret_file", "");
  if (path.empty()) return;
  if (!config.is_secured) {
    comm.fail("secret_file", "is given, and comm.security: none uses no secret, allowed: \"\"");
  }
  try {
    config.options.meeting.secret = read_secret_file(path);
  } catch (const ConfigError& error) {
    comm.fail("secret_file", error.what());
  }
}

/// The section may be read once.
LaunchConfig read_launch_config(const Options& root, BesideLaunch& beside) {
  const Options comm = root.section("comm");
  LaunchConfig config;
  std::vector<std::string> backends = backend_names();
  backends.insert(backends.begin(), "auto");
  config.backend = comm.choice("backend", backends, "auto");
  config.is_auto = config.backend == "auto";
  if (config.is_auto) config.backend = default_backend();
  if (config.backend == "threads" && under_mpi_launcher()) {
    comm.fail("backend",
              "with threads, every process that mpirun has started would train a run of its own, "
              "allowed: mpi, or --ranks N without mpirun");
  }
  config.options.timeout_s = comm.read(kTimeout);
  config.options.node_size = static_cast<int>(comm.read(kLocalSize));
  beside.codec = find_codec(comm.choice("codec", codec_names(comm), "fp32"), comm);
  config.shares_memory = comm.flag("shared_memory", true);
  read_meeting(comm, config);
  read_fault(root.section("fault"), config.options.fault, beside);
  // Last, because read_log() goes on with this section (to_yaml()).
  const Options log = root.section("log");
  config.options.log_level = log_level(log.choice("level", log_level_names(), "info"));
  return config;
}

}  // namespace

LaunchConfig read_launch_config(const Options& root) {
  BesideLaunch unused;
  return read_launch_config(root, unused);
}

std::shared_ptr<const Schedule> RunConfig::make_schedule(std::int64_t total_steps) const {
  return gossamer::make_schedule(schedule_name, {lr, total_steps}, schedule_options);
}

RunConfig read_run_config(const Options& root, const World& world, const std::string& config_path,
                          bool joins) {
  RunConfig config;
  read_run(root.section("run"), config_path, config);
  config.device = read_device_choice(root.section("device"));
  read_model_and_data(root, config);
  read_communication(root, world, joins, config);
  read_optimizer(root, config);
  read_buckets(root.section("buckets"), config);
  take_launch_config(root, config);
  read_log(root.section("log"), config);
  read_train(root.section("train"), config);
  check_asynchronous(root, config);
  check_survival(root, config);
  root.reject_unknown();
  config.resolved = root.resolved();
  return config;
}

}  // namespace gossamer::apps

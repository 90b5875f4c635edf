#pragma once
// A run's configuration, read and checked. read_run_config() and the plug-ins read all keys of the
// YAML file; a key that no reader asks for is an error. Errors: ConfigError with the place and the
// key. Not thread safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/data/dataset.hpp"
#include "apps/models/models.hpp"
#include "apps/train/batches.hpp"
#include "apps/train/device_choice.hpp"
#include "apps/train/phases.hpp"
#include "base/options.hpp"
#include "comm/start/start.hpp"
#include "core/algorithms/algorithm.hpp"
#include "core/algorithms/plug_ins.hpp"
#include "core/bucket/gradient_policy.hpp"
#include "core/bucket/parameter_group.hpp"
#include "core/trace/step_timeline.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {

/// The sections `comm` and `fault`, and the log level: what a process must know before its ranks
/// exist, and what its ranks use later.
struct CommConfig {
  LaunchConfig launch;
  /// Null: blocks are sent as they are.
  const Codec* codec = nullptr;
  /// True: ranks that are left when others die go on from their mean.
  bool resync = true;
  /// True: the learning rate grows and falls with the number of ranks.
  bool scale_lr = false;
  /// The name of the topology that fits every world.
  std::string fallback_topology = {};

  /// True: the run goes on when ranks die.
  [[nodiscard]] bool survives() const { return launch.options.fault.survives; }
  [[nodiscard]] LogLevel log_level() const { return launch.options.log_level; }
};

/// Replaces the backend `auto` by that of default_backend(). Of `options.meeting`, takes the number
/// of streams, the interface and the secret.
CommConfig read_comm_config(const Options& root, const PlugIns& own = {});

struct RunConfig {
  std::uint64_t seed = 0;
  /// If set, `epochs` does not count.
  std::optional<std::int64_t> steps;
  std::int64_t epochs = 1;
  std::string output_dir;
  /// True: the user has given `output_dir`. False: it follows from the name of the file.
  bool output_dir_given = false;
  /// Compute threads per rank. 0: the ranks of a host share its cores evenly.
  std::int64_t threads = 0;

  struct Checkpoints {
    /// At most one of every_steps and every_minutes is positive; if neither is, checkpoints are
    /// off.
    std::int64_t every_steps = 0;
    double every_minutes = 0.0;
    /// True: the user has chosen one.
    bool given = false;
    /// Number of checkpoints that stay.
    std::int64_t keep = 3;
    /// True: a checkpoint that cannot be saved ends the run.
    bool must_succeed = false;
    [[nodiscard]] bool enabled() const { return every_steps > 0 || every_minutes > 0.0; }
  };
  Checkpoints checkpoints;

  DeviceChoice device;
  CommConfig comm;
  std::unique_ptr<const ModelFactory> model;
  /// A safetensors file with the initial values; empty: none.
  std::string model_init;
  /// True: values that the file lacks stay as the model has them.
  bool model_init_partial = false;
  std::unique_ptr<const DatasetEntry::Loader> data;
  /// Samples per rank and step.
  std::int64_t batch_size = 0;
  std::optional<double> dirichlet_alpha;
  Augmentation augmentation;
  /// Batches that are made ahead of time.
  std::int64_t prefetch = 0;

  /// The phases of the run, at least one.
  std::vector<RunPhase> phases;
  /// The phases in another world, in which fault.fallback_topology takes the place of topologies
  /// that do not fit.
  std::function<std::vector<RunPhase>(const World& world)> phases_in;
  /// The exchanges of the first phase.
  ExchangeOptions exchange;
  std::shared_ptr<const Optimizer> optimizer;
  double lr = 0.0;
  double weight_decay = 0.0;
  bool decay_bias_and_norm = false;
  std::vector<ParameterGroup> parameter_groups;
  std::string schedule_name;
  Options schedule_options;
  GradientOptions gradients;
  /// A name of loss_names().
  std::string loss;
  /// Batches of a step.
  std::int64_t accumulate = 1;
  /// The factor of the old values in the moving average of the mean model.
  std::optional<double> ema;
  /// Evaluations without a better loss after which the run ends; 0: it never does.
  std::int64_t patience = 0;
  /// The size at which a bucket closes; 0: the first steps try several sizes.
  std::int64_t bucket_bytes = 0;

  std::string progress;
  bool tensorboard = false;
  /// The file for the timeline of all ranks; empty: none.
  std::string timeline;
  /// The steps of the timeline. Not set: default_timeline_steps().
  std::optional<TimelineSteps> timeline_steps;
  /// A page is written at the end.
  bool report = true;
  /// The steps between two records, evaluations or measurements; 0: there are none.
  std::int64_t log_every = 0;
  std::int64_t consensus_every = 0;
  std::int64_t eval_every = 0;

  /// All values, defaults included.
  std::vector<ResolvedValue> resolved;
  /// True: a run that diverges ends with ExitCode::kNonFinite. False: it warns and goes on.
  bool stops_diverged = false;

  [[nodiscard]] std::shared_ptr<const Schedule> make_schedule(std::int64_t total_steps) const;
  /// Steps between two looks at losses that no record holds; 0: records hold them all.
  [[nodiscard]] std::int64_t unrecorded_every() const {
    return log_every == 0 && consensus_every == 0 ? 100 : 0;
  }
};

/// Reads the whole configuration. The name of the file `config_path` names the run if
/// run.output_dir is not given. `joins`: the rank joins others, and `world` need not fit the
/// topology.
RunConfig read_run_config(const Options& root, const World& world, const std::string& config_path,
                          const PlugIns& own = {}, bool joins = false);

}  // namespace gossamer::apps

#pragma once
// A run's configuration, read and checked. All keys of the YAML file are read here or by the
// plug-in that they belong to; anything else in the file is refused.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apps/data/dataset.hpp"
#include "apps/models/models.hpp"
#include "apps/train/device_choice.hpp"
#include "base/options.hpp"
#include "comm/launch.hpp"
#include "core/algorithm.hpp"
#include "core/gradient_policy.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {

/// What is needed before any rank runs: the `comm` section and the log level.
struct LaunchConfig {
  std::string backend;
  LaunchOptions options;
};

LaunchConfig read_launch_config(const Options& root);

struct RunConfig {
  std::uint64_t seed = 0;
  /// If set, it counts and `epochs` does not.
  std::optional<std::int64_t> steps;
  std::int64_t epochs = 1;
  std::string output_dir;
  /// `output_dir` is the user's choice, and does not follow from the file's name.
  bool output_dir_given = false;
  /// Compute threads per rank; 0: the machine's cores shared out evenly.
  std::int64_t threads = 0;

  DeviceChoice device;
  /// Seconds that an exchange may take.
  double comm_timeout_s = 0.0;

  std::unique_ptr<const ModelFactory> model;
  std::unique_ptr<const DatasetEntry::Loader> data;
  std::int64_t batch_size = 0;
  std::optional<double> dirichlet_alpha;

  AlgorithmChoice algorithm;
  std::shared_ptr<const Topology> topology;
  std::shared_ptr<const Optimizer> optimizer;
  double lr = 0.0;
  double weight_decay = 0.0;
  bool decay_bias_and_norm = false;
  std::string schedule_name;
  Options schedule_options;
  GradientOptions gradients;
  std::int64_t bucket_bytes = 0;

  LogLevel log_level = LogLevel::kInfo;
  std::string progress;
  std::int64_t log_every = 0;
  std::int64_t consensus_every = 0;
  std::int64_t eval_every = 0;

  /// Every value, defaults included.
  std::vector<ResolvedValue> resolved;

  [[nodiscard]] std::shared_ptr<const Schedule> make_schedule(std::int64_t total_steps) const;
};

/// `config_path` names the run when run.output_dir is not given. Throws ConfigError.
RunConfig read_run_config(const Options& root, const World& world, const std::string& config_path);

}  // namespace gossamer::apps

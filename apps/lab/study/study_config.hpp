#pragma once
// A study: one training configuration, and lists of what is to be compared. It is written as
//
//   base:                     an ordinary training configuration, without what the study sets
//     model: {name: cnn}
//   study:
//     workers: 16
//     steps: 300
//     topologies: [allreduce, ring, {name: base-k, k: 3}]
//     algorithms: [gossip, gradient_tracking, {name: outer, every: 10}]    # gossip by default
//     optimizers: [adamw, {name: accum_adamw, accum_iter: 4}]
//     seeds: [1, 2, 3]
//     dirichlet_alpha: [null, 0.5]
//
// and stands for one run of every combination. A run is an ordinary training configuration again:
// its folder's config.yaml runs with `gossamer train`. Nothing here knows LibTorch.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml.hpp"

namespace gossamer::apps {

struct StudyRun {
  /// The run's folder below the study's: `ring__accum_adamw__alpha0.5__seed1`.
  std::string name = {};
  /// As the items of the lists are called: `allreduce`, `base-k-k-3`, or the item's `label`.
  std::string topology = {};
  std::string optimizer = {};
  /// Nothing: every worker has the same mixture of labels.
  std::optional<double> dirichlet_alpha = {};
  std::int64_t seed = 1;
  /// What read_run_config() takes.
  YamlNode tree = {};
};

struct StudyConfig {
  std::string output_dir;
  int workers = 1;
  /// Where `workers` stands in the file.
  std::string workers_where;
  YamlNode base;
  /// All runs of the first seed come first, so that a study that is cut short has something to
  /// compare.
  std::vector<StudyRun> runs;
};

/// The most workers of a study; they share one machine.
inline constexpr int kMaxStudyWorkers = 32;

/// `config_path` names the study when study.output_dir is not given. What the runs' own sections
/// hold is checked by read_run_config(). Throws ConfigError.
StudyConfig read_study_config(const YamlNode& root, const std::string& config_path);

/// `even` or `alpha0.5`.
std::string heterogeneity_label(const std::optional<double>& dirichlet_alpha);

}  // namespace gossamer::apps

#pragma once
// A study is one training configuration and lists of what to compare. The file reads
//
//   base:                     an ordinary training configuration, without what the study sets
//     model: {name: cnn}
//   study:
//     workers: 16
//     steps: 300
//     topologies: [allreduce, ring, {name: base-k, k: 3}]
//     algorithms: [gossip, gradient_tracking, {name: outer, every: 10}]    # gossip by default
//     codecs: [fp32, int8]                                # base.comm.codec by default
//     optimizers: [adamw, {name: accum_adamw, accum_iter: 4}]
//     seeds: [1, 2, 3]
//     dirichlet_alpha: [null, 0.5]
//
// The study has one run for every combination of the lists' items. Each run is an ordinary training
// configuration again: `gossamer train` runs the config.yaml of its folder. Nothing here depends on
// LibTorch.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml.hpp"
#include "core/algorithms/plug_ins.hpp"

namespace gossamer::apps {

struct StudyRun {
  /// The run's folder below the study's: `ring__accum_adamw__alpha0.5__seed1`.
  std::string name = {};
  /// The names of the lists' items: `allreduce`, `base-k-k-3`, or the item's `label`. A codec other
  /// than fp32 is part of the topology's name: `ring-int8`.
  std::string topology = {};
  std::string optimizer = {};
  /// Nothing: every worker has the same mixture of labels.
  std::optional<double> dirichlet_alpha = {};
  std::int64_t seed = 1;
  /// The training configuration, as read_run_config() takes it.
  YamlNode tree = {};
};

struct StudyConfig {
  std::string output_dir;
  int workers = 1;
  /// The place of `workers` in the file, for messages.
  std::string workers_where;
  YamlNode base;
  /// The runs, ordered by seed first: a study that is cut short can then still compare.
  std::vector<StudyRun> runs;
};

/// The largest number of workers of a study; all of them share one machine.
inline constexpr int kMaxStudyWorkers = 32;

/// The name of the file `config_path` names the study if study.output_dir is not given. Throws
/// ConfigError. `own`: algorithms that the study may name, too. read_run_config() checks the runs'
/// own sections later.
StudyConfig read_study_config(const YamlNode& root, const std::string& config_path,
                              const PlugIns& own = {});

/// `even` or `alpha0.5`.
std::string heterogeneity_label(const std::optional<double>& dirichlet_alpha);

}  // namespace gossamer::apps

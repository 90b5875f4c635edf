#pragma once
// Times training steps. Models, data and figures are those of scripts/peer_step.py for decent-dp
// and PyTorch, so the output lines of the two programs can be compared.
//
// Engines are the algorithms of the library, and `compute`, which runs forward and backward alone.
// Several engines take turns within the same processes, so that a slow drift of the machine cancels
// out of the ratios between them.

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "comm/communicator.hpp"

namespace gossamer::apps {

struct StepBenchOptions {
  std::vector<std::string> engines = {"gossip"};
  std::string model = "mlp";
  std::string topology = "ring";
  std::string optimizer = "accum-adamw";
  /// Timed steps of each engine. Several engines share them out over `rounds` turns.
  std::int64_t steps = 30;
  std::int64_t warmup = 5;
  std::int64_t rounds = 5;
  /// Samples per rank; 0: the model's default.
  std::int64_t batch_size = 0;
  double bucket_mb = 25.0;
  std::int64_t accum_iter = 4;
  double lr = 3e-4;
  double weight_decay = 0.1;
  std::uint64_t seed = 1234;
  int threads = 1;
  /// Report the mean loss over ranks for every step, warm-up included.
  bool losses = false;
};

/// `gossip`, `allreduce`, `local`, `compute`.
std::vector<std::string> step_engine_names();

/// Collective. Returns the lines of JSON that rank 0 prints: one per engine and, with several
/// engines, one with their ratios. Throws ConfigError.
std::vector<std::string> run_step_bench(Communicator& communicator, const World& world,
                                        const StepBenchOptions& options);

}  // namespace gossamer::apps

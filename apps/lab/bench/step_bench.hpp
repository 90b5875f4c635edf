#pragma once
// Times training steps. Models, data and figures are those of scripts/lab/peer_step.py for
// decent-dp and PyTorch, so the output lines of the two programs can be compared.
//
// Engines are the algorithms of the library, and `compute`, which runs forward and backward alone.
// Several engines take turns within the same processes, so that a slow drift of the machine cancels
// out of the ratios between them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.hpp"
#include "comm/communicator.hpp"
#include "core/algorithms/algorithm.hpp"
#include "core/algorithms/plug_ins.hpp"
#include "core/trace/step_timeline.hpp"

namespace gossamer::apps {

class StepEngine {
 public:
  /// `text` is a name, or a section: `{name: allreduce, delay: 1}`. Throws ConfigError.
  explicit StepEngine(std::string_view text, const PlugIns& own = {});

  /// The text of the user.
  [[nodiscard]] const std::string& text() const { return text_; }
  /// Empty: forward and backward alone.
  [[nodiscard]] const std::optional<AlgorithmChoice>& algorithm() const { return algorithm_; }
  [[nodiscard]] bool needs_topology() const { return algorithm_ && algorithm_->needs_topology(); }
  /// Null: blocks are sent as they are.
  [[nodiscard]] bool takes(const Codec* codec) const {
    return codec != nullptr && algorithm_ && algorithm_->takes(*codec);
  }

 private:
  std::string text_;
  std::optional<AlgorithmChoice> algorithm_;
};

/// Reads engines with commas between them. Throws ConfigError.
std::vector<StepEngine> read_step_engines(std::string_view text, const PlugIns& own = {});

struct StepBenchOptions {
  std::vector<StepEngine> engines = read_step_engines("gossip");
  /// Names may mean these rows, too.
  PlugIns own = {};
  std::string model = "mlp";
  /// A name, or a section as in a configuration: `{name: from-file, path: graph.yaml}`.
  std::string topology = "ring";
  /// The codec of the algorithms that can send encoded blocks.
  std::string codec = "fp32";
  /// Whether ranks of one host share memory (ExchangeOptions).
  bool shares_memory = true;
  std::string optimizer = "accum-adamw";
  /// Timed steps of each engine. Several engines share them out over `rounds` turns.
  std::int64_t steps = 30;
  std::int64_t warmup = 5;
  std::int64_t rounds = 5;
  /// Samples per rank; 0: the model's default.
  std::int64_t batch_size = 0;
  /// 0: the steps before the timed ones try several sizes.
  double bucket_mb = 25.0;
  std::int64_t accum_iter = 4;
  double lr = 3e-4;
  double weight_decay = 0.1;
  std::uint64_t seed = 1234;
  int threads = 1;
  /// This rank computes `slowdown` times slower: it sleeps in every step. Negative: no rank does.
  int slow_rank = -1;
  double slowdown = 4.0;
  /// Milliseconds that every rank sleeps in every step, the slow one `slowdown` times as long. So a
  /// few cores can stand for many. 0: ranks only compute.
  double sleep_ms = 0.0;
  /// Report the mean loss over ranks for every step, warm-up included.
  bool losses = false;
  /// The file for the timeline of all ranks; empty: none. It is about the first engine.
  std::string timeline = {};
  /// The steps of the timeline, warm-up included. Not set: default_timeline_steps().
  std::optional<TimelineSteps> timeline_steps = {};
};

/// Collective. Returns the lines of JSON that rank 0 prints: one per engine and, with several
/// engines, one with their ratios. Throws ConfigError.
std::vector<std::string> run_step_bench(Communicator& communicator, const World& world,
                                        const StepBenchOptions& options);

}  // namespace gossamer::apps

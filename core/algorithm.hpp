#pragma once
// What happens to a bucket whose gradients have arrived: gossip, all-reduce or nothing but the
// local update. The bucket manager counts gradients and calls; an algorithm owns the exchanges.
//
// Protocol per step: on_ready(b) once for every bucket, in any order; on_step_end() after the last.
// The same calls on every rank. A bucket is updated in on_ready() if the gradient policy allows, at
// the latest in on_step_end(). Not thread safe.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "core/bucket.hpp"
#include "core/gradient_policy.hpp"
#include "core/pipeline_metrics.hpp"
#include "optim/schedule.hpp"
#include "topology/topology.hpp"

namespace gossamer {

/// What an exchange has brought: see ParameterUpdate. The inboxes belong to the algorithm.
struct Arrived {
  double keep = 1.0;
  std::span<const Inbox> inboxes = {};
  /// The learning rate is multiplied by this; see RankRound.
  double update_scale = 1.0;
};

/// What algorithms work with; the bucket manager owns it and outlives them.
struct AlgorithmContext {
  Communicator& communicator;
  /// Used by gossip alone; may be null otherwise.
  const Topology* topology = nullptr;
  const Optimizer& optimizer;
  const Schedule& schedule;
  std::vector<Bucket>& buckets;
  PipelineMetrics& metrics;
  GradientPolicy& policy;
  Stream& stream;
  SimdPath simd = best_simd_path();
  WorkerPool& pool;
  /// Called after every update of a bucket.
  std::function<void(const Bucket&)> after_update;

  /// Takes note of a gradient that has arrived, where the stream's work is done at once: its norm,
  /// and whether it is finite. False: it is not, and was to be. Elsewhere update() does it for the
  /// bucket, and close_step() tells.
  [[nodiscard]] bool inspect(Bucket& bucket, std::int64_t entry, const ConstBlock& gradient);
  /// Updates a bucket with the current step's learning rate, timed; `arrived` is what it mixes in.
  /// `mean_factor` as in GradientPolicy.
  void update(Bucket& bucket, const Arrived& arrived = {}, double mean_factor = 1.0);
  /// For a step whose updates the gradient policy has deferred: calls `update` for every bucket, in
  /// bucket order. Collective if `ranks` is given.
  void update_deferred(Communicator* ranks, const std::function<void(Bucket&)>& update);
  /// A gradient of a bucket.
  struct GradientPlace {
    const Bucket& bucket;
    std::int64_t entry = 0;
  };
  /// Takes note of how a step ended. Returns the first gradient that was not finite and was to be.
  std::optional<GradientPlace> close_step();
  /// Throws NonFiniteError; `culprit` as Algorithm::culprit() returns it.
  [[noreturn]] static void refuse(const GradientPlace& place, std::int64_t step, int culprit);
  [[nodiscard]] double lr() const { return schedule.lr(metrics.num_updates()); }
};

class Algorithm {
 public:
  virtual ~Algorithm() = default;
  virtual void on_ready(Bucket& bucket) = 0;
  virtual void on_step_end() = 0;
  /// What turns the gradients it updates with into means; see GradientPolicy.
  [[nodiscard]] virtual double mean_factor() const { return 1.0; }
  /// The world rank whose gradient was not finite in the last step, where what was to be used for
  /// an update was not: `self` where ranks use their own. Where they use sums all ranks call it,
  /// and ask each other, for some seconds at most. Negative: it was not this rank's, and no other
  /// has said that it was its own. Throws CommError when another rank fails meanwhile.
  [[nodiscard]] virtual int culprit(const Bucket& /*bucket*/, std::int64_t /*entry*/, int self) {
    return self;
  }
  /// The stream waits for all exchanges in flight; what has arrived is still mixed in by the next
  /// step.
  virtual void drain() = 0;
  /// After drain(): what has arrived is not mixed in.
  virtual void forget_arrived() = 0;
};

struct AlgorithmEntry {
  std::string_view name;
  std::string_view summary;
  bool needs_topology = false;
  std::unique_ptr<Algorithm> (*make)(AlgorithmContext& context);
};

std::span<const AlgorithmEntry> algorithm_table();
std::vector<std::string> algorithm_names();
/// Throws ConfigError for an unknown name or a topology that is missing.
std::unique_ptr<Algorithm> make_algorithm(std::string_view name, AlgorithmContext& context);

}  // namespace gossamer

#pragma once
// The pipeline of a step. Gradients come in one by one; the bucket whose last one has come goes to
// the algorithm at once.
//
// Protocol: per step, gradient_ready() for every parameter that has a gradient, in any order, then
// finish_step(), which also hands over the buckets that stayed incomplete: a parameter without a
// gradient is mixed, not updated. Every rank makes the same number of steps. drain() before
// anything else writes parameters, and before the last rank leaves.
//
// Streams: all work on memory goes to one stream, in the order of the calls. Where it lags behind
// (a GPU), gradients and parameters belong to that stream: whoever writes the ones or reads the
// others does so in its order. The calls do not wait for it, but for this: the first call of a step
// learns how the step before ended, so that the host is never more than one step ahead.
//
// Thread safety: one thread, the one that runs the backward pass.
// Errors: CommError from exchanges, NonFiniteError for gradients (see gradient_policy.hpp),
// std::logic_error for a broken protocol.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/host_stream.hpp"
#include "core/algorithm.hpp"
#include "core/bucket.hpp"

namespace gossamer {

class Pipeline {
 public:
  struct Config {
    std::string algorithm = "gossip";
    std::shared_ptr<const Topology> topology = {};
    std::shared_ptr<const Optimizer> optimizer = {};
    std::shared_ptr<const Schedule> schedule = {};
    GradientOptions gradients = {};
    /// Outlives the manager. Null: a stream of its own whose work is done at once.
    Stream* stream = nullptr;
    SimdPath simd = best_simd_path();
    /// Threads that share mixing and updates, the caller included.
    int num_threads = 1;
    /// Called after every update of a bucket, with the bucket's spec.
    std::function<void(const BucketSpec&)> after_update = {};
  };

  /// Collective. `memory`: per bucket of the plan, with the initial parameters.
  Pipeline(Communicator& communicator, Config config, std::vector<ParameterInfo> parameters,
           const BucketPlan& plan, std::vector<ParameterMemory> memory);
  /// Waits for the stream's work.
  ~Pipeline() = default;
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// The gradient of a parameter (its declared index) is there and stays until its update.
  void gradient_ready(std::int64_t parameter, ConstBlock gradient);
  void finish_step();
  /// Waits for all exchanges in flight and for the stream; what has arrived is mixed in by the next
  /// step.
  void drain();
  /// After drain(): the next step mixes nothing.
  void forget_arrived() { algorithm_->forget_arrived(); }

  /// Gradients are multiplied by this before clipping and update; see GradientPolicy.
  void set_gradient_scale(double scale) { policy_.set_scale(scale); }

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Waits until it is known how the last step ended; throws NonFiniteError and CommError.
  [[nodiscard]] const PipelineMetrics& metrics();
  /// The learning rate of the next step. Waits like metrics().
  [[nodiscard]] double lr();
  /// That of the last step; never waits.
  [[nodiscard]] double last_lr() const { return last_lr_; }
  [[nodiscard]] Stream& stream() { return stream_; }
  /// The memory of all parameters, bucket by bucket.
  [[nodiscard]] std::vector<ParameterMemory> memory() const;

 private:
  struct Place {
    std::size_t bucket = 0;
    std::int64_t entry = 0;
  };

  /// Takes note of how the last step ended, once.
  void close_step();

  Config config_;
  InlineStream inline_stream_;
  Stream& stream_;
  PipelineMetrics metrics_;
  WorkerPool pool_;
  GradientPolicy policy_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;
  AlgorithmContext context_;
  std::unique_ptr<Algorithm> algorithm_;
  bool step_is_open_ = false;
  double last_lr_ = 0.0;
  /// Last, so that nothing else goes before the stream's work is done.
  SynchronizedScope scope_;
};

}  // namespace gossamer

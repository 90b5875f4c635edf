#pragma once
// The pipeline of a training step. Gradients come in one by one. When the last gradient of a bucket
// has come, the pipeline asks the algorithm what to mix in, runs the sweep (mixing, clipping and
// the optimizer's rule in one pass over memory), and lets the algorithm start the next exchange.
//
// Protocol: per step, gradient_ready() for every parameter that has a gradient, in any order, then
// finish_step(), which also handles the buckets that stayed incomplete: a parameter without a
// gradient is mixed, not updated. Buckets are handled in bucket order, the same on every rank, so
// that ranks cannot wait for one another in a circle. Every rank makes the same number of steps.
// drain() before the last rank leaves.
//
// Writing parameters from outside: drain(), write, forget_arrived(). The next step then mixes
// nothing, for what has arrived belongs to the parameters from before.
//
// Streams: all work on memory goes to one stream, in the order of the calls. On a stream that lags
// behind (a GPU's), gradients and parameters belong to the stream: whoever writes the gradients or
// reads the parameters does so in its order. The first call of a step learns how the step before
// ended, so that the host is never more than one step ahead; no other call waits for the stream.
//
// Thread safety: one thread, the one that runs the backward pass.
// Errors: CommError from exchanges, NonFiniteError for gradients (see gradient_policy.hpp),
// ConfigError from the constructor, std::logic_error for a broken protocol.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/host_stream.hpp"
#include "core/algorithm.hpp"
#include "core/bucket.hpp"
#include "core/gradient_policy.hpp"
#include "core/pipeline_metrics.hpp"
#include "optim/schedule.hpp"

namespace gossamer {

class Pipeline {
 public:
  struct Config {
    AlgorithmChoice algorithm = {};
    std::shared_ptr<const Topology> topology = {};
    std::shared_ptr<const Optimizer> optimizer = {};
    std::shared_ptr<const Schedule> schedule = {};
    GradientOptions gradients = {};
    /// Outlives the pipeline. Null: a stream of its own whose work is done at once.
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
  /// Waits for all exchanges under way and for the stream; what has arrived is mixed in by the next
  /// step.
  void drain();
  /// After drain(): the next step mixes nothing.
  void forget_arrived();

  /// Names all state of training, per parameter, and drains first. Loading is collective: it ends
  /// with the exchanges that were under way when the state was saved. Ranks, algorithm, optimizer
  /// and parameters must be those of saving; bucket sizes may differ.
  void visit(StateVisitor& visitor);

  /// Gradients are multiplied by this before clipping and update; see GradientPolicy.
  void set_gradient_scale(double scale) { policy_.set_scale(scale); }

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Waits until it is known how the last step ended; throws NonFiniteError and CommError.
  [[nodiscard]] const PipelineMetrics& metrics();
  /// Waits like metrics().
  [[nodiscard]] const Progress& progress();
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

  void make_buckets(const std::vector<ParameterInfo>& parameters, const BucketPlan& plan,
                    std::vector<ParameterMemory> memory);
  [[nodiscard]] bool defers() const { return algorithm_->updates_at_end() || policy_.defers(); }
  /// Handles the buckets that are ready and next in order.
  void advance();
  /// Lets the algorithm replace the gradients of a bucket, and looks at them.
  void settle_gradients(Bucket& bucket);
  /// Decides, mixes, updates, and starts the next exchange.
  void update(Bucket& bucket);
  void update_deferred();
  /// Takes note of a gradient where the stream's work is done at once: its norm, and whether it is
  /// finite. False: it is not finite, and the policy is to abort.
  [[nodiscard]] bool inspect(Bucket& bucket, std::int64_t entry, const ConstBlock& gradient);
  /// Takes note of how the last step ended, once.
  void close_step();
  [[noreturn]] void refuse(const Bucket& bucket, std::int64_t entry, std::int64_t step,
                           bool is_own) const;

  Config config_;
  Communicator& communicator_;
  InlineStream inline_stream_;
  Stream& stream_;
  PipelineMetrics metrics_;
  Progress progress_;
  WorkerPool pool_;
  GradientPolicy policy_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;
  std::unique_ptr<LaneFactory> lanes_;
  std::unique_ptr<Algorithm> algorithm_;
  /// Buckets of this step that gradients_ready() was called for.
  std::size_t num_ready_ = 0;
  bool step_is_open_ = false;
  /// The last step's exchanges are under way, or have arrived and are not forgotten.
  bool has_sent_ = false;
  double last_lr_ = 0.0;
  /// Last, so that nothing else goes before the stream's work is done.
  SynchronizedScope scope_;
};

}  // namespace gossamer

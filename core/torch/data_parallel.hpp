#pragma once
// A model trained by gossip. DecentralizedDataParallel wraps any torch::nn::Module; every rank
// builds the same one and trains it with an ordinary loop of forward() and backward():
//
//   gossamer::DecentralizedDataParallel model(net, communicator, {.topology = ..., ...});
//   auto loss = criterion(model.forward(x), y);
//   loss.backward();      // updates the parameters, bucket by bucket, and starts the exchanges
//
// There is no optimizer step and no zero_grad(): when backward() returns, parameters are updated
// and gradients are gone (a parameter's grad() is undefined). Exchanges then run until the same
// bucket's next update; meanwhile the parameters may be read and must not be written. To write
// them, open the scope of write_parameters(). Call drain() before leaving.
//
// The first backward traces the order in which gradients arrive, compares it between ranks, cuts
// buckets and moves the parameters into contiguous blocks; tensors that shared memory with the
// parameters before (p.data() kept by the caller) do not follow. A parameter that is given other
// memory later (torch::load, vector_to_parameters, set_data) is moved back by the next step, with
// its new values.
//
// Parameters in bfloat16 have float32 master copies there, which are what is mixed, updated and
// exchanged; the parameters are their rounded copies and follow every update. Types may be mixed
// within a model. What is written to such a parameter becomes its master copy at the next step or
// average.
//
// Collective calls, made by every rank at the same step: the constructor, backward(),
// finish_step(), drain(), global_average(), write_parameters(). Thread safety: the rank's own
// thread only.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "base/log.hpp"
#include "comm/communicator.hpp"
#include "core/model_average.hpp"
#include "core/pipeline.hpp"
#include "core/torch/torch_stream.hpp"

namespace gossamer {

struct DataParallelOptions {
  /// By name, as "allreduce", or with options: {"allreduce", Options::parse("delay: 1")}.
  AlgorithmChoice algorithm = {};
  /// Needed by algorithms that send to the peers of a topology, such as gossip.
  std::shared_ptr<const Topology> topology = {};
  std::shared_ptr<const Optimizer> optimizer = {};
  std::shared_ptr<const Schedule> schedule = {};
  double weight_decay = 0.0;
  /// Biases and the parameters of normalisation layers are decayed as well.
  bool decay_bias_and_norm = false;
  /// Clipping, and what happens when a gradient is not finite.
  GradientOptions gradients = {};
  /// The stream on which LibTorch computes with the model, whose device has all of its parameters;
  /// the communicator must reach its memory (RankDevice). It follows LibTorch's current stream of
  /// the threads that run backward passes. Outlives the wrapper. Null: the model is on processors.
  TorchStream* stream = nullptr;
  /// Threads that share mixing and updates; those of autograd are LibTorch's own affair.
  int num_threads = 1;
  /// Bytes at which a bucket closes.
  std::int64_t bucket_bytes = std::int64_t{25} * 1024 * 1024;
  /// A step uses the mean of the gradients that set_accumulate_grad() has collected, not their sum:
  /// they are divided by this rank's number of backward passes in the step.
  bool mean_over_micro_batches = false;
  /// Floating-point buffers become their mean over all ranks after every so many steps, which waits
  /// for the slowest rank; 0: never. Averages of the model (global_average()) are apart from this.
  std::int64_t average_buffers_every = 0;
  /// Trace and plan, but never update: parameters stay, nothing is exchanged.
  bool dry_run = false;
  Logger logger = {};
};

class DataParallelCore;

/// The mean model, for as long as this lives; then the rank's own model is back, bit for bit,
/// unless keep() was called. What was written to parameters or averaged buffers inside the scope is
/// then lost as well. A training backward inside the scope is an error. The destructor does not
/// communicate.
class AverageScope {
 public:
  AverageScope(AverageScope&& other) noexcept;
  AverageScope& operator=(AverageScope&&) = delete;
  AverageScope(const AverageScope&) = delete;
  AverageScope& operator=(const AverageScope&) = delete;
  ~AverageScope();

  /// ||mean - x|| over the trainable parameters, x this rank's own.
  [[nodiscard]] double consensus_distance() const { return distance_; }
  /// The mean stays the model of this rank; the next step mixes nothing. Every rank must call it.
  void keep();

 private:
  friend class DataParallelCore;
  AverageScope(std::shared_ptr<DataParallelCore> core, bool average_buffers);

  std::shared_ptr<DataParallelCore> core_;
  std::unique_ptr<ModelAverage> parameters_;
  std::unique_ptr<ModelAverage> buffers_;
  /// Parameters and averaged buffers, each with a tensor that stays at the memory it had.
  std::vector<std::pair<torch::Tensor, torch::Tensor>> homes_;
  double distance_ = 0.0;
};

/// For as long as this lives, the caller may write the parameters in any way: in place under
/// torch::NoGradGuard, with torch::load, with vector_to_parameters. Types, shapes and devices stay
/// (ConfigError from the next call that uses the parameters). Training goes on from what was
/// written: what the peers had sent before is dropped, and the next step mixes nothing. The state
/// of the optimizer stays. A training backward inside the scope is an error. The destructor does
/// not communicate.
class WriteScope {
 public:
  WriteScope(WriteScope&& other) noexcept;
  WriteScope& operator=(WriteScope&&) = delete;
  WriteScope(const WriteScope&) = delete;
  WriteScope& operator=(const WriteScope&) = delete;
  ~WriteScope();

 private:
  friend class DataParallelCore;
  explicit WriteScope(std::shared_ptr<DataParallelCore> core);

  std::shared_ptr<DataParallelCore> core_;
};

/// The part that does not depend on the module's type.
class DataParallelCore : public std::enable_shared_from_this<DataParallelCore> {
 public:
  /// Collective; see DecentralizedDataParallel.
  static std::shared_ptr<DataParallelCore> create(std::shared_ptr<torch::nn::Module> module,
                                                  Communicator& communicator,
                                                  DataParallelOptions options);
  ~DataParallelCore();
  DataParallelCore(const DataParallelCore&) = delete;
  DataParallelCore& operator=(const DataParallelCore&) = delete;

  void set_accumulate_grad(bool accumulate);
  void finish_step();
  void drain();
  [[nodiscard]] AverageScope global_average(bool average_buffers);
  [[nodiscard]] WriteScope write_parameters();
  [[nodiscard]] const PipelineMetrics& metrics() const;
  [[nodiscard]] const Progress& progress() const;
  [[nodiscard]] double lr() const;
  [[nodiscard]] double last_lr() const;
  void set_gradient_scale(double scale);
  [[nodiscard]] const BucketPlan& plan() const;
  [[nodiscard]] const std::vector<ParameterInfo>& parameter_infos() const;

  /// For GraphedStep. While on, backward() leaves gradients where they are and makes no step.
  void set_recording(bool recording);
  /// The gradients of the trainable parameters, in declared order and the parameters' layouts,
  /// which have none afterwards; undefined: there is none.
  [[nodiscard]] std::vector<torch::Tensor> take_gradients();
  /// What was written to the parameters since the last step becomes the model. Backward passes do
  /// this by themselves; a recorded one reads the parameters where they were before.
  void adopt_written();
  /// A step with gradients as take_gradients() returns them. They stay as they are.
  void step_with(std::span<const torch::Tensor> gradients);

  /// For the hooks: the gradient of a trainable parameter has been accumulated.
  void on_gradient(std::int64_t parameter);

 private:
  friend class AverageScope;
  friend class WriteScope;
  struct State;
  explicit DataParallelCore(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

template <class ModuleType>
class DecentralizedDataParallel {
 public:
  /// Collective. Compares the models of all ranks and copies rank 0's parameters and buffers to
  /// all. The communicator must outlive this object. Throws ConfigError when the models differ,
  /// nothing can be trained, or a parameter has a type or layout that cannot be.
  DecentralizedDataParallel(std::shared_ptr<ModuleType> module, Communicator& communicator,
                            DataParallelOptions options)
      : module_(std::move(module)),
        core_(DataParallelCore::create(module_, communicator, std::move(options))) {}

  template <class... Args>
  auto forward(Args&&... args) {
    return module_->forward(std::forward<Args>(args)...);
  }

  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }
  [[nodiscard]] std::vector<torch::Tensor> parameters() const { return module_->parameters(); }
  [[nodiscard]] ModuleType& module() { return *module_; }

  /// While on, backward() only adds to the gradients; the first backward() after it is off again
  /// makes the step, with the sum of all (DataParallelOptions::mean_over_micro_batches: the mean).
  void set_accumulate_grad(bool accumulate) { core_->set_accumulate_grad(accumulate); }
  /// Makes a step without a backward(), for a rank on which none reaches a parameter, or which has
  /// no batch left while others have: gradients accumulated before are used, everything is mixed.
  /// backward() ends its step by itself.
  void finish_step() { core_->finish_step(); }
  /// Waits for the exchanges in flight: before leaving. Their results are mixed in by the next
  /// step, if there is one. To write parameters, use write_parameters().
  void drain() { core_->drain(); }
  /// Collective, between steps, before the first one too. See WriteScope. The next step notices a
  /// write outside of such a scope, unless it went through data(). After drain(), or if the
  /// parameter was given other memory, the step goes on as after a scope that this rank alone has
  /// opened, and logs a warning once. Otherwise a peer may have got half of what was written, and
  /// the step throws std::logic_error.
  [[nodiscard]] WriteScope write_parameters() { return core_->write_parameters(); }
  /// Collective, between steps, before the first one too. See AverageScope.
  [[nodiscard]] AverageScope global_average(bool average_buffers = true) {
    return core_->global_average(average_buffers);
  }

  /// Gradients are multiplied by this before clipping and update, from the next step on: 1/S for a
  /// loss that was multiplied by S. With GradientOptions::nonfinite = kSkip this is all a gradient
  /// scaler needs: progress().num_skipped tells whether the last step was left out, on every rank
  /// alike, and S must shrink.
  void set_gradient_scale(double scale) { core_->set_gradient_scale(scale); }

  /// For GraphedStep.
  [[nodiscard]] const std::shared_ptr<DataParallelCore>& core() const { return core_; }

  /// Sums over the steps so far.
  [[nodiscard]] const PipelineMetrics& metrics() const { return core_->metrics(); }
  /// Steps so far.
  [[nodiscard]] const Progress& progress() const { return core_->progress(); }
  /// The learning rate of the next step.
  [[nodiscard]] double lr() const { return core_->lr(); }
  /// That of the last step. Unlike lr(), which has to know how that ended, it never waits.
  [[nodiscard]] double last_lr() const { return core_->last_lr(); }
  /// Empty before the first backward().
  [[nodiscard]] const BucketPlan& plan() const { return core_->plan(); }
  /// The trainable parameters, in declared order.
  [[nodiscard]] const std::vector<ParameterInfo>& parameter_infos() const {
    return core_->parameter_infos();
  }

 private:
  std::shared_ptr<ModuleType> module_;
  std::shared_ptr<DataParallelCore> core_;
};

}  // namespace gossamer

#pragma once
// The parts of DecentralizedDataParallel (data_parallel.hpp, which has the protocol): its options,
// its scopes, and all code that does not depend on the module's type. The functions of
// DataParallelCore are in data_parallel.cpp, data_parallel_step.cpp, data_parallel_survival.cpp,
// saved_state.cpp and written_parameters.cpp.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "base/log.hpp"
#include "base/state_visitor.hpp"
#include "base/timeline.hpp"
#include "comm/communicator.hpp"
#include "core/bucket/model_average.hpp"
#include "core/step/pipeline.hpp"
#include "core/torch/parameters.hpp"
#include "core/torch/torch_stream.hpp"

namespace gossamer {

struct DataParallelOptions {
  /// The algorithm, the topology and the codec.
  ExchangeOptions exchange = {};
  /// Must be given, like `schedule`.
  std::shared_ptr<const Optimizer> optimizer = {};
  std::shared_ptr<const Schedule> schedule = {};
  double weight_decay = 0.0;
  /// True: biases and the parameters of normalisation layers are decayed as well.
  bool decay_bias_and_norm = false;
  /// Parameters with numbers of their own.
  std::vector<ParameterGroup> parameter_groups = {};
  /// Clipping, and the consequence of a gradient that is not finite.
  GradientOptions gradients = {};
  /// The stream on which LibTorch computes with the model. All parameters are on the stream's
  /// device, and the communicator must reach the memory of that device (RankDevice). The stream
  /// follows LibTorch's current stream in the threads that run backward passes. It must outlive the
  /// wrapper. Null: the model is on processors.
  /// Ranks that share a GPU must be processes: autograd has one thread for a GPU in every process,
  /// and a rank's hooks wait there for messages.
  TorchStream* stream = nullptr;
  /// Number of threads that share mixing and updates. LibTorch decides on autograd's threads.
  int num_threads = 1;
  /// Bytes at which a bucket closes; equal on all ranks. 0: the first steps try several sizes, and
  /// training goes on with the one that had the shortest steps (bucket_tuner.hpp). Not for
  /// GraphedStep.
  std::int64_t bucket_bytes = std::int64_t{25} * 1024 * 1024;
  /// True: a step divides the gradients that set_accumulate_grad() has collected by this rank's
  /// number of backward passes in the step. False: the step uses their sum.
  bool mean_over_micro_batches = false;
  /// After every so many steps each floating-point buffer becomes its mean over all ranks, and all
  /// ranks wait for the slowest one. 0: never. This option does not affect global_average().
  std::int64_t average_buffers_every = 0;
  /// True: backward() traces and plans, but never updates, sends or mixes parameters.
  bool dry_run = false;
  /// True: this rank joins others that train (Communicator::is_elastic()). The constructor is not
  /// collective then, and resume() follows.
  bool joins = false;
  /// Records waits, updates and messages; null: nothing is recorded.
  std::shared_ptr<Timeline> timeline = {};
  /// Takes the wrapper's warnings.
  Logger logger = {};

  /// The configuration of the pipeline.
  [[nodiscard]] Pipeline::Config pipeline() const;
};

class DataParallelCore;

/// While this object lives, the model is the mean of all ranks' models. The destructor restores
/// this rank's own model, bit for bit, unless keep() was called. Writes to parameters or averaged
/// buffers inside the scope are then lost. A training backward() inside the scope throws
/// std::logic_error. The destructor does not communicate.
class AverageScope {
 public:
  AverageScope(AverageScope&& other) noexcept;
  AverageScope& operator=(AverageScope&&) = delete;
  AverageScope(const AverageScope&) = delete;
  AverageScope& operator=(const AverageScope&) = delete;
  ~AverageScope();

  /// ||mean - x||, the L2 norm over the trainable parameters, where x are this rank's own values.
  [[nodiscard]] double consensus_distance() const { return distance_; }
  /// Makes the mean this rank's model for good; the next step mixes nothing. Every rank must call
  /// it.
  void keep();

 private:
  friend class DataParallelCore;
  AverageScope(std::shared_ptr<DataParallelCore> core, bool average_buffers);

  std::shared_ptr<DataParallelCore> core_;
  std::unique_ptr<ModelAverage> parameters_;
  std::unique_ptr<ModelAverage> buffers_;
  /// Each parameter and averaged buffer, with a second tensor that keeps its memory at the start.
  std::vector<std::pair<torch::Tensor, torch::Tensor>> homes_;
  double distance_ = 0.0;
};

/// While this object lives, the caller may write the parameters in any way: in place under
/// torch::NoGradGuard, with torch::load, with vector_to_parameters. Types, shapes and devices must
/// stay; otherwise the next call that uses the parameters throws ConfigError. Training continues
/// from the written parameters. Blocks that peers sent before are dropped, and the next step mixes
/// nothing. The state of the optimizer stays. A training backward() inside the scope throws
/// std::logic_error. The destructor does not communicate.
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

/// The part of DecentralizedDataParallel that does not depend on the module's type. Public
/// functions without a comment are documented there.
class DataParallelCore : public std::enable_shared_from_this<DataParallelCore>,
                         private ParameterHost {
 public:
  /// Collective. Like the constructor of DecentralizedDataParallel.
  static std::shared_ptr<DataParallelCore> create(std::shared_ptr<torch::nn::Module> module,
                                                  Communicator& communicator,
                                                  DataParallelOptions options);
  ~DataParallelCore() override;
  DataParallelCore(const DataParallelCore&) = delete;
  DataParallelCore& operator=(const DataParallelCore&) = delete;

  void set_accumulate_grad(bool accumulate);
  void finish_step();
  /// Waits for the exchanges in flight. Throws std::logic_error for a parameter that was written
  /// while its exchange was in flight.
  void drain();
  [[nodiscard]] AverageScope global_average(bool average_buffers);
  [[nodiscard]] WriteScope write_parameters();
  void visit(StateVisitor& visitor);
  void replan(std::int64_t bucket_bytes);
  void switch_to(const AlgorithmSwitch& to);
  void detach();
  void catch_up(std::int64_t num_steps);
  void resume(const Pipeline::Resume& wanted);
  /// All tensors of the model, with shapes and types, one line each.
  [[nodiscard]] std::string description() const { return describe(tensors_); }
  /// The engine. Steps, moves and switches go through the functions above.
  [[nodiscard]] Pipeline& engine() const { return *pipeline_; }

  /// For GraphedStep. While recording is on, backward() leaves gradients where they are and makes
  /// no step.
  void set_recording(bool recording);
  /// Takes the gradients out of the trainable parameters. Returns them in declared order, each in
  /// the layout of its parameter; an undefined tensor stands for a missing gradient.
  [[nodiscard]] std::vector<torch::Tensor> take_gradients();
  /// Adopts the values that other code has written to the parameters since the last step. A
  /// backward pass does this by itself. A replayed pass does not: it reads the parameters at the
  /// recorded addresses, so call this before a replay.
  void adopt_written();
  /// Makes a step with gradients in the form of take_gradients(), and does not change them. Throws
  /// std::logic_error before the first step.
  void step_with(std::span<const torch::Tensor> gradients);

  /// The hooks call it when the gradient of a trainable parameter has been accumulated. `parameter`
  /// is its declared index.
  void on_gradient(std::int64_t parameter);

 private:
  friend class AverageScope;
  friend class WriteScope;
  /// Collective.
  DataParallelCore(std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
                   DataParallelOptions options);

  /// Throws std::logic_error after a backward pass that has failed half way.
  void check_whole() const;
  /// Throws std::logic_error while an AverageScope or a WriteScope is open.
  void check_no_scope(std::string_view call) const;
  /// `core` is this object.
  void begin_backward(const std::weak_ptr<DataParallelCore>& core);
  void end_backward();
  /// Call this before the first gradient of a step is used.
  void begin_step();
  /// Gives the parameter's accumulated gradient to the engine, in the parameter's layout. `stream`
  /// is the native handle of the stream on which the gradient was made; nothing: not known.
  void offer_accumulated(std::int64_t parameter, std::optional<const void*> stream);
  /// Offers the gradients for which no hook was called in the last backward pass of the step.
  void offer_rest();
  /// Sets the order of the gradients for a first step without a traced backward pass. The gradient
  /// of the last declared parameter counts as the first to arrive.
  void take_declared_order();
  void end_step();

  // ParameterHost.

  std::vector<ParameterMemory> move_parameters(const BucketPlan& plan) override;
  void parameters_have_moved() override;
  void drain_parameters() override;
  /// Drops the gradients of the bucket, and notes its new versions.
  void after_update(const BucketSpec& spec) override;
  void average_parameters(double weight) override;

  /// Throws std::logic_error inside a step.
  void check_between_steps(std::string_view call) const;
  /// Collective: replaces the floating-point buffers by their means. `weight` as in ModelAverage.
  void average_buffers(double weight = 1.0);
  /// Collective: gives the ranks rank 0's values of all tensors that are not averaged.
  void copy_unaveraged();

  // The functions below are defined in written_parameters.cpp.

  /// Notes the current memory of all parameters as their homes.
  void note_homes();
  /// True if the parameter lies in its home. Throws ConfigError if its type, shape or device differ
  /// from the home's.
  [[nodiscard]] bool is_home(std::size_t parameter) const;
  /// True if other code has written the tensor in place since the pipeline last wrote it.
  [[nodiscard]] bool is_written(std::size_t parameter) const;
  /// Adopts the values that other code has written to the parameters: moves rebound parameters back
  /// into their homes, updates master copies, and drops the blocks that have arrived. Cheap if
  /// nothing was written.
  void adopt();
  /// Updates the master copies of the `written` parameters. `everywhere`: also of those whose
  /// values differ from their rounded master copies.
  void write_masters(const std::vector<bool>& written, bool everywhere);
  /// Warns once of trainable parameters that this wrapper does not know. Searches only if a frozen
  /// parameter has been unfrozen, or if other parameters have gradients than in the step before.
  void warn_of_untrained();
  void note_version(std::size_t parameter);

  /// The memory that an average of the model works on.
  [[nodiscard]] std::vector<ParameterMemory> parameter_memory();
  [[nodiscard]] std::vector<ParameterMemory> buffer_memory();
  /// Tells autograd that all parameters have changed.
  void bump_versions();
  /// The stream for all work on the model's memory. Work given to it runs after all work that this
  /// thread has given to LibTorch.
  [[nodiscard]] Stream& stream();

  /// The record of a trainable parameter.
  struct Place {
    /// The native handle of the stream on which the gradient was made; nothing: not known.
    std::optional<const void*> made_on = {};
    /// A tensor on the parameter's own memory: the memory that it was wrapped with, later its part
    /// of a block. A call that rebinds the parameter (such as torch::load) leaves this memory
    /// behind.
    torch::Tensor home;
    /// LibTorch's version counter of the parameter after the pipeline last wrote it.
    std::int64_t version = 0;
  };
  /// The scope that is open.
  enum class Scope { kNone, kAverage, kWrite };
  /// Whether a GraphedStep records passes.
  enum class Recording {
    kNever,
    kNow,
    /// A pass has been recorded, so the parameters must stay where they are.
    kDone,
  };
  /// The warnings that have been given.
  struct Warnings {
    bool of_writing = false;
    bool of_untrained = false;
    /// Pipeline::offered() at the last search of warn_of_untrained().
    std::vector<bool> last_offered = {};
  };

  std::shared_ptr<torch::nn::Module> module_;
  Communicator& communicator_;
  DataParallelOptions options_;
  ModuleTensors tensors_;
  InlineStream inline_stream_;
  /// Declared after the stream, because its destructor waits for the stream.
  std::unique_ptr<Pipeline> pipeline_;
  /// The records of the trainable parameters, by declared index.
  std::vector<Place> places_;
  bool accumulating_ = false;
  /// Backward passes of this step, the current one included.
  std::int64_t num_passes_ = 0;
  /// The gradients of an uncommitted step (Pipeline::has_uncommitted_step()).
  std::vector<torch::Tensor> uncommitted_gradients_;
  /// Steps so far; counted only if average_buffers_every is set.
  std::int64_t num_steps_ = 0;
  Recording recording_ = Recording::kNever;
  Scope scope_ = Scope::kNone;
  /// A WriteScope has been open since the last step.
  bool was_open_ = false;
  /// Nothing is in flight: no step has begun since the last drain().
  bool quiet_ = true;
  Warnings warnings_;
  /// The callback for the end of the backward pass is queued.
  bool in_backward_ = false;
  /// Expires when that callback is released.
  std::weak_ptr<void> callback_;
};

}  // namespace gossamer

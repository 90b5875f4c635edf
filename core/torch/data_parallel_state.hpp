#pragma once
// The state of a wrapped model, and the parts of a step. Only the .cpp files of DataParallelCore
// include this header: data_parallel.cpp, data_parallel_state.cpp, saved_state.cpp,
// written_parameters.cpp.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/bucket_tuner.hpp"
#include "core/torch/data_parallel.hpp"
#include "core/torch/parameters.hpp"

namespace gossamer {

/// The first ten names of a list, for a message.
std::string list_of(std::vector<std::string> names);

/// Throws ConfigError if the algorithm cannot run so under the wrapper's other options.
void check_exchange(const ExchangeOptions& exchange, const DataParallelOptions& options,
                    int num_ranks);

/// The vectors below have one element for each trainable parameter, by declared index, unless their
/// comment says otherwise.
struct DataParallelCore::State {
  State(std::shared_ptr<torch::nn::Module> module_in, Communicator& communicator_in,
        DataParallelOptions options_in)
      : module(std::move(module_in)),
        communicator(communicator_in),
        options(std::move(options_in)),
        tensors(collect_tensors(*module)) {
    note_homes();
  }

  std::shared_ptr<torch::nn::Module> module;
  Communicator& communicator;
  DataParallelOptions options;
  ModuleTensors tensors;
  std::vector<ParameterInfo> infos;
  BucketPlan plan;
  InlineStream inline_stream;
  /// Made by the first step. Declared after the stream, because its destructor waits for the
  /// stream.
  std::unique_ptr<Pipeline> pipeline;
  /// Sizes of buckets are being tried.
  std::optional<BucketTuner> tuner;
  /// Declared indices, in the order in which gradients arrived in the first step.
  std::vector<std::int64_t> arrival_order;
  /// The pipeline has been given the parameter's gradient in this step. In the first step, which
  /// has no pipeline: the gradient has arrived.
  std::vector<bool> offered;
  /// The native handle of the stream on which the gradient was made.
  std::vector<const void*> made_on;
  /// A tensor on the parameter's own memory: the memory that it was wrapped with, later its part of
  /// a block. A call that rebinds the parameter (such as torch::load) leaves this memory behind.
  std::vector<torch::Tensor> homes;
  /// LibTorch's version counter of the parameter after the pipeline last wrote it.
  std::vector<std::int64_t> versions;
  bool accumulating = false;
  /// Backward passes of this step, the current one included.
  std::int64_t num_passes = 0;
  /// Steps so far; counted only if average_buffers_every is set.
  std::int64_t num_steps = 0;
  bool recording = false;
  /// A pass has been recorded, so the parameters must stay where they are.
  bool recorded = false;
  /// An AverageScope is open.
  bool averaging = false;
  /// A WriteScope is open.
  bool writing = false;
  /// A WriteScope has been open since the last step.
  bool was_open = false;
  /// Nothing is in flight: no step has begun since the last drain().
  bool quiet = true;
  bool warned_of_writing = false;
  bool warned_of_untrained = false;
  bool has_told_of_messages = false;
  /// `offered` at the last search of warn_of_untrained().
  std::vector<bool> last_offered;
  /// The callback for the end of the backward pass is queued.
  bool in_backward = false;
  /// Expires when that callback is released.
  std::weak_ptr<void> callback;
  /// The answers of metrics() and progress() before there is a pipeline.
  PipelineMetrics no_metrics;
  Progress no_progress;
  double gradient_scale = 1.0;

  /// Throws std::logic_error after a backward pass that has failed half way.
  void check_whole() const;
  /// Throws std::logic_error while an AverageScope or a WriteScope is open.
  void check_no_scope(std::string_view call) const;
  /// `core` is the owner of this state.
  void begin_backward(const std::weak_ptr<DataParallelCore>& core);
  void end_backward();
  /// Call this before the first gradient of a step is used.
  void begin_step();
  /// Gives the parameter's gradient to the pipeline, in the parameter's layout. `native` is the
  /// handle of the stream on which the gradient was made.
  void offer(std::int64_t parameter, const void* native);
  /// Gives `grad` to the pipeline as it is.
  void offer(std::int64_t parameter, const torch::Tensor& grad);
  /// Offers the gradients for which no hook was called in the last backward pass of the step.
  void offer_rest();
  /// Collective: compares the order of the gradients between the ranks, and cuts buckets.
  void make_plan();
  /// Sets the order of the gradients for a first step without a traced backward pass. The gradient
  /// of the last declared parameter counts as the first to arrive.
  void take_declared_order();
  [[nodiscard]] std::string names_without_gradient() const;
  [[nodiscard]] BucketPlan plan_of(std::int64_t bucket_bytes) const;
  /// Starts the trials of sizes of buckets, if there is anything to try.
  void start_trials();
  /// Moves the parameters into new blocks for the buckets of a plan.
  [[nodiscard]] std::vector<ParameterMemory> move_parameters(const BucketPlan& to);
  /// Collective: moves the parameters into blocks, and makes the pipeline.
  void start_pipeline();
  /// Notes where the parameters lie after a move.
  void note_move();
  /// Collective: moves parameters and state into other buckets. Does nothing if the present ones
  /// are cut alike.
  void replan(std::int64_t bucket_bytes);
  /// Collective: goes on with another algorithm or topology.
  void switch_to(const AlgorithmSwitch& to);
  /// Collective: goes on to the next size of buckets that is to be tried. When all have been tried,
  /// takes the best one.
  void try_buckets();
  void end_step();
  /// Tells once that the system keeps ranks of a host from sharing memory.
  void tell_of_messages();
  /// Drops the gradients of a bucket that has been updated, and notes its new versions.
  void after_update(const BucketSpec& spec);
  /// Collective: replaces the floating-point buffers by their means.
  void average_buffers();

  // In saved_state.cpp.

  /// Collective when it loads into a wrapper without buckets: cuts them, and makes the pipeline.
  void visit_arrival_order(StateVisitor& visitor);

  // In written_parameters.cpp.

  /// Notes the current memory of all parameters as their homes.
  void note_homes();
  /// True if the parameter lies in its home. Throws ConfigError if its type, shape or device differ
  /// from those of the home.
  [[nodiscard]] bool is_home(std::size_t parameter) const;
  /// True if other code has written the tensor in place since the pipeline last wrote it.
  [[nodiscard]] bool is_written(std::size_t parameter) const;
  /// Waits for the exchanges in flight. Throws std::logic_error for a parameter that was written
  /// while its exchange was in flight.
  void drain();
  /// Adopts the values that other code has written to the parameters: moves rebound parameters back
  /// into their homes, updates master copies, and drops the blocks that have arrived. Cheap if
  /// nothing was written.
  void adopt_written();
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
};

}  // namespace gossamer

#pragma once
// What a wrapped model is made of, and the parts of a step. For data_parallel.cpp alone.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/torch/data_parallel.hpp"
#include "core/torch/parameters.hpp"

namespace gossamer {

/// The first names of a list, for a message.
std::string list_of(std::vector<std::string> names);

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
  /// Made by the first backward. Declared after the stream, which it waits for when it goes.
  std::unique_ptr<Pipeline> pipeline;
  /// Parameters in the order in which gradients arrived, of the first backward.
  std::vector<std::int64_t> arrival_order;
  /// Which parameters the pipeline has been given in this step.
  std::vector<bool> offered;
  /// The native handles of the streams on which their gradients were made.
  std::vector<const void*> made_on;
  /// Where each parameter's memory is: what it was wrapped with, later its part of a block. Whoever
  /// rebinds a parameter (torch::load does) leaves this memory behind.
  std::vector<torch::Tensor> homes;
  /// Their version counters after the pipeline last wrote them.
  std::vector<std::int64_t> versions;
  bool accumulating = false;
  /// Backward passes of this step, the one under way included.
  std::int64_t num_passes = 0;
  std::int64_t num_steps = 0;
  bool recording = false;
  /// An AverageScope is open.
  bool averaging = false;
  /// A WriteScope is open.
  bool writing = false;
  /// One was, since the last step.
  bool was_open = false;
  /// Nothing is in flight: drained since the last step.
  bool quiet = true;
  bool warned_of_writing = false;
  bool warned_of_untrained = false;
  /// What was offered in the last step.
  std::vector<bool> last_offered;
  /// The end-of-backward callback is queued.
  bool in_backward = false;
  /// Lives as long as that callback.
  std::weak_ptr<void> callback;
  PipelineMetrics no_metrics;
  Progress no_progress;
  double gradient_scale = 1.0;

  void check_whole() const;
  /// Throws std::logic_error while an AverageScope or a WriteScope is open.
  void check_no_scope(std::string_view call) const;
  /// `core`: whose state this is.
  void begin_backward(const std::weak_ptr<DataParallelCore>& core);
  void end_backward();
  /// Before the first gradient of a step is used.
  void begin_step();
  /// `native`: of the stream on which the gradient was made.
  void offer(std::int64_t parameter, const void* native);
  void offer(std::int64_t parameter, const torch::Tensor& grad);
  void offer_rest();
  void make_plan();
  /// For a first step without a traced backward pass: the last parameter's gradient counts as the
  /// first to arrive.
  void take_declared_order();
  [[nodiscard]] std::string names_without_gradient() const;
  void start_pipeline();
  void end_step();
  void after_update(const BucketSpec& spec);
  void average_buffers();

  // In written_parameters.cpp.

  void note_homes();
  /// Throws ConfigError when the parameter has another type, shape or device than its home.
  [[nodiscard]] bool is_home(std::size_t parameter) const;
  /// Somebody has written to the tensor in place, since the pipeline last did.
  [[nodiscard]] bool is_written(std::size_t parameter) const;
  /// Throws std::logic_error for parameters that were written while their exchange was in flight.
  void drain();
  /// Makes what others have written to the parameters the model: moves rebound parameters back into
  /// their memory, updates master copies, and drops what has arrived. Cheap if nothing was written.
  void adopt_written();
  void write_masters(const std::vector<bool>& written, bool everywhere);
  /// Looks for parameters that this wrapper does not know: when a frozen one is not frozen any
  /// more, and when other parameters have gradients than in the step before.
  void warn_of_untrained();
  void note_version(std::size_t parameter);

  /// For averages of the model.
  [[nodiscard]] std::vector<ParameterMemory> parameter_memory();
  [[nodiscard]] std::vector<ParameterMemory> buffer_memory();
  void bump_versions();
  /// The stream of whatever touches the model's memory, behind all that LibTorch has been given in
  /// this thread.
  [[nodiscard]] Stream& stream();
};

}  // namespace gossamer

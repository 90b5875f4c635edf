#pragma once
// What a wrapped model is made of, and the parts of a step. For data_parallel.cpp alone.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/torch/data_parallel.hpp"
#include "core/torch/parameters.hpp"

namespace gossamer {

struct DataParallelCore::State {
  State(std::shared_ptr<torch::nn::Module> module_in, Communicator& communicator_in,
        DataParallelOptions options_in)
      : module(std::move(module_in)),
        communicator(communicator_in),
        options(std::move(options_in)),
        tensors(collect_tensors(*module)) {}

  std::shared_ptr<torch::nn::Module> module;
  Communicator& communicator;
  DataParallelOptions options;
  ModuleTensors tensors;
  std::vector<ParameterInfo> infos;
  BucketPlan plan;
  InlineStream inline_stream;
  /// Made by the first backward. Declared after the stream, which it waits for when it goes.
  std::unique_ptr<Pipeline> manager;
  /// Parameters in the order in which gradients arrived, of the first backward.
  std::vector<std::int64_t> arrival_order;
  /// Which parameters the manager has been given in this step.
  std::vector<bool> offered;
  /// The native handles of the streams on which their gradients were made.
  std::vector<const void*> made_on;
  /// Their version counters after the pipeline last wrote them.
  std::vector<std::int64_t> versions;
  bool accumulating = false;
  bool recording = false;
  bool averaging = false;
  /// The end-of-backward callback is queued.
  bool in_backward = false;
  /// Lives as long as that callback.
  std::weak_ptr<void> callback;
  PipelineMetrics no_metrics;
  Progress no_progress;
  double gradient_scale = 1.0;

  void check_whole() const;
  /// `native`: of the stream on which the gradient was made.
  void offer(std::int64_t parameter, const void* native);
  void offer(std::int64_t parameter, const torch::Tensor& grad);
  void offer_rest();
  void make_plan();
  [[nodiscard]] std::string names_without_gradient() const;
  void start_pipeline();
  void end_step();
  void after_update(const BucketSpec& spec);
  void note_version(std::size_t parameter);
  void adopt_written();
  /// For averages of the model.
  [[nodiscard]] std::vector<ParameterMemory> parameter_memory();
  [[nodiscard]] std::vector<ParameterMemory> buffer_memory();
  void bump_versions();
  /// The stream of whatever touches the model's memory, behind all that LibTorch has been given in
  /// this thread.
  [[nodiscard]] Stream& stream();
};

}  // namespace gossamer

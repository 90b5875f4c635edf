#include "core/torch/data_parallel.hpp"

#include <stdexcept>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/torch/data_parallel_state.hpp"

namespace gossamer {
namespace {

/// Calls back when autograd has accumulated a parameter's gradient. Holds the core weakly: a model
/// may be used after its wrapper is gone.
class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(std::weak_ptr<DataParallelCore> core, std::int64_t parameter)
      : core_(std::move(core)), parameter_(parameter) {}
  void operator()(const torch::autograd::Variable&) override {
    if (const auto core = core_.lock()) core->on_gradient(parameter_);
  }
  [[nodiscard]] bool expired() const { return core_.expired(); }

 private:
  std::weak_ptr<DataParallelCore> core_;
  std::int64_t parameter_;
};

/// A parameter has one place for such a hook: putting a second one there would silently take the
/// parameter away from whoever has the first.
void check_hook_is_free(const NamedTensor& parameter) {
  const auto& hook = torch::autograd::impl::post_acc_grad_hooks(parameter.tensor);
  if (hook == nullptr) return;
  const auto* ours = dynamic_cast<const GradientHook*>(hook.get());
  if (ours != nullptr && ours->expired()) return;
  throw ConfigError(concat(
      "parameter ", parameter.name, " has ",
      ours != nullptr ? "another wrapper that is still alive" : "a post-accumulate-grad hook",
      ", allowed: one wrapper at a time and no such hooks of your own"));
}

/// Throws ConfigError for what no run can be made of. Looks at this rank's arguments alone.
void check_arguments(const torch::nn::Module* module, const DataParallelOptions& options,
                     int num_ranks) {
  if (module == nullptr) {
    throw ConfigError("the module to wrap is a null pointer, allowed: a module with parameters");
  }
  const auto check_least = [](std::string_view option, auto value, decltype(value) least) {
    // Not a number is refused as well.
    if (value >= least) return;
    throw ConfigError(
        concat("DataParallelOptions::", option, " is ", value, ", allowed: ", least, " or more"));
  };
  check_least("weight_decay", options.weight_decay, 0.0);
  check_least("num_threads", options.num_threads, 1);
  check_least("bucket_bytes", options.bucket_bytes, 0);
  check_least("average_buffers_every", options.average_buffers_every, 0);
  if (!options.optimizer || !options.schedule) {
    throw ConfigError("DataParallelOptions needs an optimizer and a schedule");
  }
  if (!options.dry_run) {
    check_exchange(options.exchange, options, num_ranks);
  }
}

}  // namespace

DataParallelCore::DataParallelCore(std::unique_ptr<State> state) : state_(std::move(state)) {}
DataParallelCore::~DataParallelCore() = default;

std::shared_ptr<DataParallelCore> DataParallelCore::create(
    std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
    DataParallelOptions options) {
  check_arguments(module.get(), options, communicator.size());
  auto state = std::make_unique<State>(std::move(module), communicator, std::move(options));
  agree(communicator, "their models", describe(state->tensors));
  const DataParallelOptions& wanted = state->options;
  state->infos = describe_parameters(state->tensors.trainable,
                                     {wanted.weight_decay, wanted.decay_bias_and_norm},
                                     state->stream().device());
  if (state->infos.empty()) {
    throw ConfigError(
        "the model has no parameter that requires a gradient: nothing can be trained");
  }
  for (const NamedTensor& parameter : state->tensors.trainable) check_hook_is_free(parameter);
  broadcast_tensors(communicator, state->stream(), state->tensors);
  state->offered.resize(state->infos.size());
  state->made_on.resize(state->infos.size());
  state->versions.resize(state->infos.size());

  std::shared_ptr<DataParallelCore> core(new DataParallelCore(std::move(state)));
  const auto& trainable = core->state_->tensors.trainable;
  for (std::size_t i = 0; i < trainable.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(
        trainable[i].tensor, std::make_unique<GradientHook>(core, static_cast<std::int64_t>(i)));
  }
  return core;
}

void DataParallelCore::on_gradient(std::int64_t parameter) {
  State& state = *state_;
  const auto place = static_cast<std::size_t>(parameter);
  const NamedTensor& entry = state.tensors.trainable[place];
  // Left behind, it would be added to the next step's gradient.
  if (state.averaging || state.writing) entry.tensor.mutable_grad().reset();
  state.check_no_scope("backward()");
  if (state.recording) return;
  state.check_whole();
  if (!state.in_backward) state.begin_backward(weak_from_this());
  if (state.accumulating) return;
  if (state.offered[place]) {
    throw std::logic_error(
        concat("parameter ", entry.name, " got a second gradient in one backward pass, as happens ",
               "when two checkpointed parts use it; call set_accumulate_grad(true) before ",
               "backward() and finish_step() after it"));
  }
  if (state.pipeline) {
    // Autograd may run every part of a model on a stream of its own.
    state.offer(parameter, state.stream().native());
  } else {
    state.offered[place] = true;
    state.arrival_order.push_back(parameter);
  }
}

void DataParallelCore::set_accumulate_grad(bool accumulate) { state_->accumulating = accumulate; }

void DataParallelCore::set_recording(bool recording) {
  if (recording && state_->tuner) {
    throw ConfigError(
        "a recorded step needs parameters that stay in their places, and bucket_bytes is 0, which "
        "moves them while sizes of buckets are tried; give the size");
  }
  state_->recorded = state_->recorded || recording;
  state_->recording = recording;
}

std::vector<torch::Tensor> DataParallelCore::take_gradients() {
  std::vector<torch::Tensor> gradients;
  for (const NamedTensor& entry : state_->tensors.trainable) {
    torch::Tensor& grad = entry.tensor.mutable_grad();
    if (grad.defined()) adopt_layout(entry, grad);
    gradients.push_back(std::exchange(grad, {}));
  }
  return gradients;
}

void DataParallelCore::step_with(std::span<const torch::Tensor> gradients) {
  State& state = *state_;
  if (!state.pipeline) throw std::logic_error("step_with() before the first backward()");
  state.check_no_scope("step_with()");
  state.check_whole();
  state.begin_step();
  const auto offer = [&](std::int64_t parameter) {
    const torch::Tensor& gradient = gradients[static_cast<std::size_t>(parameter)];
    if (gradient.defined() && !state.offered[static_cast<std::size_t>(parameter)]) {
      state.offer(parameter, gradient);
    }
  };
  // As backward passes offer them, so that buckets get ready in their order.
  for (const std::int64_t parameter : state.arrival_order) offer(parameter);
  for (std::int64_t i = 0; i < std::ssize(state.infos); ++i) offer(i);
  state.end_step();
}

void DataParallelCore::finish_step() {
  State& state = *state_;
  state.check_no_scope("finish_step()");
  state.check_whole();
  state.begin_step();
  if (!state.pipeline && state.arrival_order.empty()) state.take_declared_order();
  state.end_step();
}

void DataParallelCore::drain() { state_->drain(); }

void DataParallelCore::adopt_written() {
  state_->check_no_scope("a step");
  state_->adopt_written();
}

AverageScope DataParallelCore::global_average(bool average_buffers) {
  state_->check_no_scope("global_average()");
  if (state_->tuner) state_->tuner->skip_step();
  return {shared_from_this(), average_buffers};
}

WriteScope DataParallelCore::write_parameters() {
  state_->check_no_scope("write_parameters()");
  if (state_->tuner) state_->tuner->skip_step();
  return WriteScope(shared_from_this());
}

void DataParallelCore::replan(std::int64_t bucket_bytes) {
  State& state = *state_;
  state.check_no_scope("replan()");
  state.check_whole();
  if (bucket_bytes <= 0) throw std::logic_error("replan(): bucket_bytes must be more than 0");
  if (!state.pipeline) throw std::logic_error("replan() before the first step");
  if (state.in_backward) throw std::logic_error("replan() inside a backward pass");
  if (state.recorded) {
    throw std::logic_error("replan() would move parameters that a recorded step reads");
  }
  state.tuner.reset();
  state.replan(bucket_bytes);
}

void DataParallelCore::switch_to(const AlgorithmSwitch& to) {
  State& state = *state_;
  state.check_no_scope("switch_to()");
  state.check_whole();
  if (state.in_backward || state.num_passes > 0) {
    throw std::logic_error("switch_to() inside a step, which ends with its last backward()");
  }
  state.switch_to(to);
}

bool DataParallelCore::tries_buckets() const { return state_->tuner.has_value(); }

const PipelineMetrics& DataParallelCore::metrics() const {
  return state_->pipeline ? state_->pipeline->metrics() : state_->no_metrics;
}

const Progress& DataParallelCore::progress() const {
  return state_->pipeline ? state_->pipeline->progress() : state_->no_progress;
}

double DataParallelCore::lr() const {
  return state_->pipeline ? state_->pipeline->lr() : state_->options.schedule->lr(0);
}

double DataParallelCore::last_lr() const {
  return state_->pipeline ? state_->pipeline->last_lr() : state_->options.schedule->lr(0);
}

double DataParallelCore::model_weight() const {
  return state_->pipeline ? state_->pipeline->model_weight() : 1.0;
}

HostSharing DataParallelCore::host_sharing() const {
  return state_->pipeline ? state_->pipeline->host_sharing() : HostSharing();
}

void DataParallelCore::set_gradient_scale(double scale) {
  state_->gradient_scale = scale;
  if (state_->pipeline) state_->pipeline->set_gradient_scale(scale);
}

const BucketPlan& DataParallelCore::plan() const { return state_->plan; }

const std::vector<ParameterInfo>& DataParallelCore::parameter_infos() const {
  return state_->infos;
}

AverageScope::AverageScope(std::shared_ptr<DataParallelCore> core, bool average_buffers)
    : core_(std::move(core)) {
  DataParallelCore::State& state = *core_->state_;
  state.adopt_written();
  state.drain();
  const auto note_homes = [this](const std::vector<NamedTensor>& list) {
    for (const NamedTensor& entry : list)
      homes_.emplace_back(entry.tensor, entry.tensor.variable_data());
  };
  note_homes(state.tensors.trainable);
  if (average_buffers) note_homes(state.tensors.buffers);
  const auto average = [&state](std::vector<ParameterMemory> memory, double weight) {
    return std::make_unique<ModelAverage>(state.communicator, state.stream(), std::move(memory),
                                          weight);
  };
  parameters_ = average(state.parameter_memory(), core_->model_weight());
  distance_ = parameters_->distance();
  if (average_buffers) buffers_ = average(state.buffer_memory(), 1.0);
  state.bump_versions();
  state.averaging = true;
}

AverageScope::AverageScope(AverageScope&& other) noexcept
    : core_(std::move(other.core_)),
      parameters_(std::move(other.parameters_)),
      buffers_(std::move(other.buffers_)),
      homes_(std::move(other.homes_)),
      distance_(other.distance_) {}

void AverageScope::keep() {
  if (!core_) return;
  if (core_->state_->pipeline) core_->state_->pipeline->forget_arrived();
  core_->state_->averaging = false;
  core_.reset();
}

AverageScope::~AverageScope() {
  if (!core_) return;
  try {
    static_cast<void>(core_->state_->stream());
    for (auto& [tensor, home] : homes_) tensor.set_data(home);
    parameters_->restore();
    if (buffers_) buffers_->restore();
  } catch (const std::exception& error) {
    // Only a GPU that has failed gets here; the next step on it throws.
    core_->state_->options.logger.error(
        concat("the rank's own model is not restored: ", error.what()));
  }
  core_->state_->bump_versions();
  core_->state_->averaging = false;
}

}  // namespace gossamer

#include "gossamer/core/torch/data_parallel.hpp"

#include <algorithm>
#include <stdexcept>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include "gossamer/core/base/error.hpp"
#include "gossamer/core/base/text.hpp"
#include "gossamer/core/torch/parameters.hpp"
#include "gossamer/core/torch/torch_stream.hpp"

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

// In a warning.
constexpr std::size_t kMostNames = 10;

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

void bump_version(const torch::Tensor& tensor) { tensor.unsafeGetTensorImpl()->bump_version(); }

}  // namespace

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
  std::unique_ptr<BucketManager> manager;
  /// Parameters in the order in which gradients arrived, of the first backward.
  std::vector<std::int64_t> arrival_order;
  /// Which parameters the manager has been given in this step.
  std::vector<bool> offered;
  /// The native handles of the streams on which their gradients were made.
  std::vector<const void*> made_on;
  bool accumulating = false;
  bool recording = false;
  bool averaging = false;
  /// The end-of-backward callback is queued.
  bool in_backward = false;
  /// Lives as long as that callback.
  std::weak_ptr<void> callback;
  PipelineMetrics no_metrics;
  double gradient_scale = 1.0;

  void check_whole() const;
  void offer(std::int64_t parameter);
  void offer(std::int64_t parameter, const torch::Tensor& grad);
  void offer_rest();
  void make_plan();
  [[nodiscard]] std::string names_without_gradient() const;
  void start_pipeline();
  void end_step();
  void after_update(const BucketSpec& spec);
  [[nodiscard]] AveragedBlocks parameter_blocks();
  [[nodiscard]] AveragedBlocks buffer_blocks();
  void bump_versions() const;
  /// The stream of whatever touches the model's memory, behind all that LibTorch has been given in
  /// this thread.
  [[nodiscard]] Stream& stream();
};

Stream& DataParallelCore::State::stream() {
  if (options.stream == nullptr) return inline_stream;
  options.stream->follow_current();
  return *options.stream;
}

/// Autograd drops its callbacks when a backward pass throws: that step can never be completed.
void DataParallelCore::State::check_whole() const {
  if (in_backward && callback.expired()) {
    throw std::logic_error(
        "an earlier backward() failed half way through its step; training cannot go on after it");
  }
}

void DataParallelCore::State::offer(std::int64_t parameter) {
  const NamedTensor& entry = tensors.trainable[static_cast<std::size_t>(parameter)];
  adopt_layout(entry, entry.tensor.mutable_grad());
  offer(parameter, entry.tensor.grad());
}

void DataParallelCore::State::offer(std::int64_t parameter, const torch::Tensor& grad) {
  offered[static_cast<std::size_t>(parameter)] = true;
  // Autograd may run every part of a model on a stream of its own.
  const Stream& stream = this->stream();
  made_on[static_cast<std::size_t>(parameter)] = stream.native();
  manager->gradient_ready(parameter, block_of_tensor(grad));
}

/// Parameters whose gradient came in an earlier micro-batch only fire no hook in the last one.
void DataParallelCore::State::offer_rest() {
  for (std::size_t i = 0; i < offered.size(); ++i) {
    if (!offered[i] && tensors.trainable[i].tensor.grad().defined()) {
      offer(static_cast<std::int64_t>(i));
    }
  }
}

void DataParallelCore::State::make_plan() {
  std::vector<std::string> names;
  for (const std::int64_t index : arrival_order) {
    names.push_back(infos[static_cast<std::size_t>(index)].name);
  }
  agree(communicator, "the order in which gradients arrive", join(names, "\n"));
  plan = plan_buckets(infos, arrival_order, options.bucket_bytes);
  if (arrival_order.size() < infos.size()) {
    options.logger.warning(concat(infos.size() - arrival_order.size(), " of ", infos.size(),
                                  " parameters had no gradient in the first backward pass; they "
                                  "are mixed, and updated when they get one: ",
                                  names_without_gradient()));
  }
}

std::string DataParallelCore::State::names_without_gradient() const {
  std::vector<bool> arrived(infos.size());
  for (const std::int64_t index : arrival_order) arrived[static_cast<std::size_t>(index)] = true;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < infos.size(); ++i) {
    if (!arrived[i]) names.push_back(infos[i].name);
  }
  const bool all = names.size() <= kMostNames;
  names.resize(std::min(names.size(), kMostNames));
  return concat(join(names, ", "), all ? "" : ", ...");
}

void DataParallelCore::State::start_pipeline() {
  std::vector<ParameterMemory> memory;
  for (const BucketSpec& spec : plan.buckets) {
    memory.push_back(move_into_block(spec, tensors.trainable, stream()));
  }
  manager = std::make_unique<BucketManager>(
      communicator,
      BucketManager::Config{.algorithm = options.algorithm,
                            .topology = options.topology,
                            .optimizer = options.optimizer,
                            .schedule = options.schedule,
                            .gradients = options.gradients,
                            .stream = &stream(),
                            .num_threads = options.num_threads,
                            .after_update = [this](const BucketSpec& spec) { after_update(spec); }},
      infos, plan, std::move(memory));
  manager->set_gradient_scale(gradient_scale);
}

void DataParallelCore::State::after_update(const BucketSpec& spec) {
  for (const BucketEntry& entry : spec.entries) {
    const auto place = static_cast<std::size_t>(entry.parameter);
    const torch::Tensor& parameter = tensors.trainable[place].tensor;
    if (options.stream != nullptr && parameter.grad().defined() &&
        made_on[place] != options.stream->native()) {
      // Its memory would be used again on the stream where it was made, which does not wait for the
      // sweep.
      options.stream->keep_for_current(parameter.grad());
    }
    parameter.mutable_grad().reset();
    // The sweep wrote behind autograd's back: a graph that still needs the old values must notice.
    bump_version(parameter);
  }
}

void DataParallelCore::State::end_step() {
  in_backward = false;
  if (plan.buckets.empty()) {
    make_plan();
    if (!options.dry_run) start_pipeline();
  }
  if (options.dry_run) {
    for (const NamedTensor& entry : tensors.trainable) entry.tensor.mutable_grad().reset();
    return;
  }
  offer_rest();
  offered.assign(offered.size(), false);
  // What the caller does next comes behind this step.
  static_cast<void>(stream());
  manager->finish_step();
}

AveragedBlocks DataParallelCore::State::parameter_blocks() {
  if (manager) return {.blocks = manager->blocks()};
  return averaged_blocks(tensors.trainable, stream());
}

AveragedBlocks DataParallelCore::State::buffer_blocks() {
  std::vector<NamedTensor> averaged;
  for (const NamedTensor& entry : tensors.buffers) {
    if (is_trained_type(entry.tensor) && entry.tensor.is_non_overlapping_and_dense()) {
      averaged.push_back(entry);
    }
  }
  return averaged_blocks(averaged, stream());
}

void DataParallelCore::State::bump_versions() const {
  for (const NamedTensor& entry : tensors.trainable) bump_version(entry.tensor);
}

DataParallelCore::DataParallelCore(std::unique_ptr<State> state) : state_(std::move(state)) {}
DataParallelCore::~DataParallelCore() = default;

std::shared_ptr<DataParallelCore> DataParallelCore::create(
    std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
    DataParallelOptions options) {
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
  if (!wanted.optimizer || !wanted.schedule) {
    throw ConfigError("DataParallelOptions needs an optimizer and a schedule");
  }
  for (const NamedTensor& parameter : state->tensors.trainable) check_hook_is_free(parameter);
  broadcast_tensors(communicator, state->stream(), state->tensors);
  state->offered.resize(state->infos.size());
  state->made_on.resize(state->infos.size());

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
  if (state.averaging) {
    // Left behind, it would be added to the next step's gradient.
    state.tensors.trainable[static_cast<std::size_t>(parameter)].tensor.mutable_grad().reset();
    throw std::logic_error(
        "backward() inside the scope of global_average(): it would train the mean model; let the "
        "AverageScope end first, or evaluate under torch::NoGradGuard");
  }
  if (state.accumulating || state.recording) return;
  state.check_whole();
  if (!state.in_backward) {
    state.in_backward = true;
    const auto alive = std::make_shared<bool>();
    state.callback = alive;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [self = shared_from_this(), alive] { self->state_->end_step(); });
  }
  if (state.manager) {
    state.offer(parameter);
  } else {
    state.arrival_order.push_back(parameter);
  }
}

void DataParallelCore::set_accumulate_grad(bool accumulate) { state_->accumulating = accumulate; }

void DataParallelCore::set_recording(bool recording) { state_->recording = recording; }

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
  if (!state.manager) throw std::logic_error("step_with() before the first backward()");
  if (state.averaging) throw std::logic_error("step_with() inside the scope of global_average()");
  state.check_whole();
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
  if (state.averaging) throw std::logic_error("finish_step() inside the scope of global_average()");
  state.check_whole();
  state.end_step();
}

void DataParallelCore::drain() {
  static_cast<void>(state_->stream());
  if (state_->manager) state_->manager->drain();
}

AverageScope DataParallelCore::global_average(bool average_buffers) {
  if (state_->averaging) throw std::logic_error("global_average() inside its own scope");
  return {shared_from_this(), average_buffers};
}

const PipelineMetrics& DataParallelCore::metrics() const {
  return state_->manager ? state_->manager->metrics() : state_->no_metrics;
}

double DataParallelCore::lr() const {
  return state_->manager ? state_->manager->lr() : state_->options.schedule->lr(0);
}

void DataParallelCore::set_gradient_scale(double scale) {
  state_->gradient_scale = scale;
  if (state_->manager) state_->manager->set_gradient_scale(scale);
}

const BucketPlan& DataParallelCore::plan() const { return state_->plan; }

const std::vector<ParameterInfo>& DataParallelCore::parameter_infos() const {
  return state_->infos;
}

AverageScope::AverageScope(std::shared_ptr<DataParallelCore> core, bool average_buffers)
    : core_(std::move(core)) {
  DataParallelCore::State& state = *core_->state_;
  core_->drain();
  const auto average = [&](AveragedBlocks averaged) {
    for (Buffer& master : averaged.masters) masters_.push_back(std::move(master));
    return std::make_unique<ModelAverage>(state.communicator, state.stream(),
                                          std::move(averaged.blocks));
  };
  parameters_ = average(state.parameter_blocks());
  distance_ = parameters_->distance();
  if (average_buffers) buffers_ = average(state.buffer_blocks());
  state.bump_versions();
  state.averaging = true;
}

AverageScope::AverageScope(AverageScope&& other) noexcept
    : core_(std::move(other.core_)),
      masters_(std::move(other.masters_)),
      parameters_(std::move(other.parameters_)),
      buffers_(std::move(other.buffers_)),
      distance_(other.distance_) {}

void AverageScope::keep() {
  if (!core_) return;
  if (core_->state_->manager) core_->state_->manager->forget_arrived();
  core_->state_->averaging = false;
  core_.reset();
}

AverageScope::~AverageScope() {
  if (!core_) return;
  try {
    static_cast<void>(core_->state_->stream());
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

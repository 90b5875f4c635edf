#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/state/tensor_names.hpp"
#include "core/torch/data_parallel_core.hpp"

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
/// parameter away from the first wrapper.
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
    options.exchange.algorithm.check(
        options.pipeline().setting(options.exchange, num_ranks, /*is_elastic=*/false));
  }
}

std::vector<std::string> names_of(std::initializer_list<const std::vector<NamedTensor>*> lists) {
  std::vector<std::string> names;
  for (const auto* const list : lists) {
    for (const NamedTensor& entry : *list) names.push_back(entry.name);
  }
  return names;
}

}  // namespace

DataParallelCore::DataParallelCore(std::shared_ptr<torch::nn::Module> module,
                                   Communicator& communicator, DataParallelOptions options)
    : module_(std::move(module)),
      communicator_(communicator),
      options_(std::move(options)),
      tensors_(collect_tensors(*module_)) {
  note_homes();
  check_tensor_names(names_of({&tensors_.trainable}),
                     names_of({&tensors_.frozen, &tensors_.buffers}));
  if (!options_.joins) agree(communicator_, "their models", describe(tensors_));
  std::vector<ParameterInfo> infos =
      describe_parameters(tensors_.trainable,
                          {.optimizer = options_.optimizer,
                           .weight_decay = options_.weight_decay,
                           .decay_bias_and_norm = options_.decay_bias_and_norm,
                           .groups = options_.parameter_groups},
                          stream().device());
  if (infos.empty()) {
    throw ConfigError(
        "the model has no parameter that requires a gradient: nothing can be trained");
  }
  const std::string warning =
      embedding_warning(*module_, tensors_.trainable, infos, *options_.optimizer);
  if (!warning.empty()) options_.logger.warning(warning);
  for (const NamedTensor& parameter : tensors_.trainable) check_hook_is_free(parameter);
  if (!options_.joins) broadcast_tensors(communicator_, stream(), tensors_);
  Pipeline::Config config = options_.pipeline();
  config.stream = &stream();
  ParameterHost& host = *this;
  pipeline_ = std::make_unique<Pipeline>(communicator_, std::move(config), std::move(infos), host);
}

DataParallelCore::~DataParallelCore() = default;

std::shared_ptr<DataParallelCore> DataParallelCore::create(
    std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
    DataParallelOptions options) {
  check_arguments(module.get(), options, communicator.size());
  std::shared_ptr<DataParallelCore> core(
      new DataParallelCore(std::move(module), communicator, std::move(options)));
  const auto& trainable = core->tensors_.trainable;
  for (std::size_t i = 0; i < trainable.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(
        trainable[i].tensor, std::make_unique<GradientHook>(core, static_cast<std::int64_t>(i)));
  }
  return core;
}

void DataParallelCore::on_gradient(std::int64_t parameter) {
  const auto place = static_cast<std::size_t>(parameter);
  const NamedTensor& entry = tensors_.trainable[place];
  // Left behind, it would be added to the next step's gradient.
  if (scope_ != Scope::kNone) entry.tensor.mutable_grad().reset();
  check_no_scope("backward()");
  if (recording_ == Recording::kNow) return;
  check_whole();
  if (!in_backward_) begin_backward(weak_from_this());
  if (accumulating_) return;
  if (pipeline_->is_offered(parameter)) {
    throw std::logic_error(
        concat("parameter ", entry.name, " got a second gradient in one backward pass, as happens ",
               "when two checkpointed parts use it; call set_accumulate_grad(true) before ",
               "backward() and finish_step() after it"));
  }
  if (pipeline_->has_started()) {
    // Autograd may run every part of a model on a stream of its own.
    offer_accumulated(parameter, stream().native());
  } else {
    pipeline_->arrived(parameter);
  }
}

void DataParallelCore::set_accumulate_grad(bool accumulate) { accumulating_ = accumulate; }

void DataParallelCore::set_recording(bool recording) {
  if (recording && pipeline_->tries_buckets()) {
    throw ConfigError(
        "a recorded step needs parameters that stay in their places, and bucket_bytes is 0, which "
        "moves them while sizes of buckets are tried; give the size");
  }
  recording_ = recording ? Recording::kNow : Recording::kDone;
}

std::vector<torch::Tensor> DataParallelCore::take_gradients() {
  std::vector<torch::Tensor> gradients;
  for (const NamedTensor& entry : tensors_.trainable) {
    torch::Tensor& grad = entry.tensor.mutable_grad();
    if (grad.defined()) adopt_layout(entry, grad);
    gradients.push_back(std::exchange(grad, {}));
  }
  return gradients;
}

void DataParallelCore::step_with(std::span<const torch::Tensor> gradients) {
  if (!pipeline_->has_started()) throw std::logic_error("step_with() before the first backward()");
  check_no_scope("step_with()");
  check_whole();
  begin_step();
  const auto offer_once = [&](std::int64_t parameter) {
    const torch::Tensor& gradient = gradients[static_cast<std::size_t>(parameter)];
    if (gradient.defined() && !pipeline_->is_offered(parameter)) {
      pipeline_->gradient_ready(parameter, block_of_tensor(gradient));
    }
  };
  // As backward passes offer them, so that buckets get ready in their order.
  for (const std::int64_t parameter : pipeline_->arrival_order()) offer_once(parameter);
  for (std::int64_t i = 0; i < std::ssize(pipeline_->parameters()); ++i) offer_once(i);
  end_step();
  if (pipeline_->has_uncommitted_step())
    uncommitted_gradients_.assign(gradients.begin(), gradients.end());
}

void DataParallelCore::finish_step() {
  check_no_scope("finish_step()");
  check_whole();
  begin_step();
  if (!pipeline_->has_started() && pipeline_->arrival_order().empty()) take_declared_order();
  end_step();
}

void DataParallelCore::adopt_written() {
  check_no_scope("a step");
  adopt();
}

AverageScope DataParallelCore::global_average(bool average_buffers) {
  check_no_scope("global_average()");
  pipeline_->skip_trial();
  return {shared_from_this(), average_buffers};
}

WriteScope DataParallelCore::write_parameters() {
  check_no_scope("write_parameters()");
  pipeline_->skip_trial();
  return WriteScope(shared_from_this());
}

void DataParallelCore::replan(std::int64_t bucket_bytes) {
  check_no_scope("replan()");
  check_whole();
  if (bucket_bytes <= 0) throw std::logic_error("replan(): bucket_bytes must be more than 0");
  if (!pipeline_->has_started()) throw std::logic_error("replan() before the first step");
  if (in_backward_) throw std::logic_error("replan() inside a backward pass");
  if (recording_ != Recording::kNever) {
    throw std::logic_error("replan() would move parameters that a recorded step reads");
  }
  pipeline_->replan(bucket_bytes);
}

AverageScope::AverageScope(std::shared_ptr<DataParallelCore> core, bool average_buffers)
    : core_(std::move(core)) {
  core_->adopt();
  core_->drain();
  const auto note_homes = [this](const std::vector<NamedTensor>& list) {
    for (const NamedTensor& entry : list)
      homes_.emplace_back(entry.tensor, entry.tensor.variable_data());
  };
  note_homes(core_->tensors_.trainable);
  if (average_buffers) note_homes(core_->tensors_.buffers);
  const auto average = [this](std::vector<ParameterMemory> memory, double weight) {
    return std::make_unique<ModelAverage>(core_->communicator_, core_->stream(), std::move(memory),
                                          weight);
  };
  parameters_ = average(core_->parameter_memory(), core_->pipeline_->model_weight());
  distance_ = parameters_->distance();
  try {
    if (average_buffers) buffers_ = average(core_->buffer_memory(), 1.0);
  } catch (const PeerLost&) {
    parameters_->restore();
    core_->bump_versions();
    throw;
  }
  core_->bump_versions();
  core_->scope_ = DataParallelCore::Scope::kAverage;
}

AverageScope::AverageScope(AverageScope&& other) noexcept
    : core_(std::move(other.core_)),
      parameters_(std::move(other.parameters_)),
      buffers_(std::move(other.buffers_)),
      homes_(std::move(other.homes_)),
      distance_(other.distance_) {}

void AverageScope::keep() {
  if (!core_) return;
  core_->pipeline_->forget_arrived();
  core_->scope_ = DataParallelCore::Scope::kNone;
  core_.reset();
}

AverageScope::~AverageScope() {
  if (!core_) return;
  try {
    static_cast<void>(core_->stream());
    for (auto& [tensor, home] : homes_) tensor.set_data(home);
    parameters_->restore();
    if (buffers_) buffers_->restore();
  } catch (const std::exception& error) {
    // Only a GPU that has failed gets here; the next step on it throws.
    core_->options_.logger.error(concat("the rank's own model is not restored: ", error.what()));
  }
  core_->bump_versions();
  core_->scope_ = DataParallelCore::Scope::kNone;
}

}  // namespace gossamer

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <utility>

#include <torch/types.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/lanes/grid_lane.hpp"
#include "core/torch/backward_end.hpp"
#include "core/torch/data_parallel_core.hpp"
#include "core/torch/torch_stream.hpp"

namespace gossamer {
namespace {

// In a warning.
constexpr std::size_t kMostNames = 10;

void bump_version(const torch::Tensor& tensor) { tensor.unsafeGetTensorImpl()->bump_version(); }

constexpr std::int64_t kMib = std::int64_t{1} << 20;
/// The sizes that are tried, beginning with the default.
constexpr std::array kTriedBytes = {25 * kMib, 8 * kMib, 3 * kMib, kMib};
/// A trial has whole periods of the topology, unless a period is longer.
constexpr std::int64_t kMostMeasured = 64;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool cuts_alike(const BucketPlan& a, const BucketPlan& b) {
  return std::ranges::equal(a.buckets, b.buckets, {}, &BucketSpec::numel, &BucketSpec::numel);
}

/// A sentence about the choice of sizes[best]. `step_s`: the seconds of a step with each size.
std::string describe_choice(const std::vector<std::int64_t>& sizes,
                            const std::vector<double>& step_s, std::size_t best) {
  std::vector<std::string> steps;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::ostringstream ms;
    ms.precision(4);
    ms << 1e3 * step_s[i];
    steps.push_back(concat(ms.str(), " ms with ", sizes[i] / kMib));
  }
  return concat("buckets close at ", sizes[best] / kMib, " MiB from now on; a step took ",
                join(steps, ", "), " MiB");
}

// No stream has this handle.
const void* const kElsewhere = &kMostNames;

}  // namespace

std::string DataParallelCore::list_of(std::vector<std::string> names) {
  const bool all = names.size() <= kMostNames;
  names.resize(std::min(names.size(), kMostNames));
  return concat(join(names, ", "), all ? "" : ", ...");
}

void DataParallelOptions::check(const ExchangeOptions& wanted, int num_ranks) const {
  AlgorithmSetting setting = wanted.setting();
  setting.optimizer = optimizer.get();
  setting.stream = stream;
  setting.num_ranks = num_ranks;
  setting.tries_bucket_sizes = bucket_bytes == 0;
  setting.average_buffers_every = average_buffers_every;
  wanted.algorithm.check(setting);
}

Stream& DataParallelCore::stream() {
  if (options_.stream == nullptr) return inline_stream_;
  options_.stream->follow_current();
  return *options_.stream;
}

/// Autograd drops its callbacks when a backward pass throws: that step can never be completed.
void DataParallelCore::check_whole() const {
  if (in_backward_ && callback_.expired()) {
    throw std::logic_error(
        "an earlier backward() failed half way through its step; training cannot go on after it");
  }
}

void DataParallelCore::begin_backward(const std::weak_ptr<DataParallelCore>& core) {
  in_backward_ = true;
  ++num_passes_;
  if (!accumulating_) begin_step();
  const auto end = std::make_shared<std::function<void()>>([core] {
    // After an error autograd may drop the callback when the core's stream has gone.
    if (const auto self = core.lock()) self->end_backward();
  });
  callback_ = end;
  at_end_of_backward(end);
}

void DataParallelCore::end_backward() {
  in_backward_ = false;
  if (!accumulating_) end_step();
}

void DataParallelCore::begin_step() {
  static_cast<void>(stream());
  adopt();
  quiet_ = false;
}

void DataParallelCore::offer(std::int64_t parameter, const void* native) {
  const NamedTensor& entry = tensors_.trainable[static_cast<std::size_t>(parameter)];
  torch::Tensor& grad = entry.tensor.mutable_grad();
  adopt_layout(entry, grad);
  if (options_.mean_over_micro_batches && num_passes_ > 1) {
    const torch::NoGradGuard no_grad;
    grad.div_(num_passes_);
  }
  made_on_[static_cast<std::size_t>(parameter)] = native;
  offer(parameter, grad);
}

void DataParallelCore::offer(std::int64_t parameter, const torch::Tensor& grad) {
  offered_[static_cast<std::size_t>(parameter)] = true;
  pipeline_->gradient_ready(parameter, block_of_tensor(grad));
}

/// Parameters whose gradient came in an earlier micro-batch only fire no hook in the last one.
void DataParallelCore::offer_rest() {
  for (std::size_t i = 0; i < offered_.size(); ++i) {
    if (!offered_[i] && tensors_.trainable[i].tensor.grad().defined()) {
      offer(static_cast<std::int64_t>(i), kElsewhere);
    }
  }
}

void DataParallelCore::take_declared_order() {
  for (std::int64_t i = std::ssize(infos_) - 1; i >= 0; --i) {
    const torch::Tensor& parameter = tensors_.trainable[static_cast<std::size_t>(i)].tensor;
    if (parameter.grad().defined()) arrival_order_.push_back(i);
  }
}

BucketPlan DataParallelCore::plan_of(std::int64_t bucket_bytes) const {
  return plan_buckets(infos_, arrival_order_, bucket_bytes);
}

void DataParallelCore::start_trials() {
  // An algorithm that sends nothing in most steps has nothing to measure in them.
  const AlgorithmEntry& entry = options_.exchange.algorithm.entry();
  if (!entry.needs_topology() && entry.equal_models != EqualModels::kAfterEveryStep) return;
  BucketTuner::Config config;
  // Sizes that cut the same buckets are tried once.
  for (const std::int64_t size : kTriedBytes) {
    if (config.sizes.empty() || !cuts_alike(plan_of(size), plan_of(config.sizes.back()))) {
      config.sizes.push_back(size);
    }
  }
  if (config.sizes.size() == 1) return;
  // Until there is a grid, messages are plain.
  if (options_.exchange.codec != nullptr && options_.exchange.codec->needs_grid()) {
    config.num_before = 2 * GridLane::kWindow;
  }
  const std::int64_t period =
      options_.exchange.topology ? options_.exchange.topology->period().value_or(1) : 1;
  if (period <= kMostMeasured) {
    config.num_measured = (config.num_measured + period - 1) / period * period;
  }
  tuner_.emplace(std::move(config));
}

void DataParallelCore::make_plan() {
  std::vector<std::string> names = {concat("buckets of ", options_.bucket_bytes, " bytes")};
  for (const std::int64_t index : arrival_order_) {
    names.push_back(infos_[static_cast<std::size_t>(index)].name);
  }
  agree(communicator_, "the order in which gradients arrive", join(names, "\n"));
  plan_ = plan_of(options_.bucket_bytes > 0 ? options_.bucket_bytes : kTriedBytes.front());
  if (options_.bucket_bytes == 0 && !options_.dry_run) start_trials();
  if (arrival_order_.size() < infos_.size()) {
    options_.logger.warning(concat(infos_.size() - arrival_order_.size(), " of ", infos_.size(),
                                   " parameters had no gradient in the first backward pass; they "
                                   "are mixed, and updated when they get one: ",
                                   names_without_gradient()));
  }
}

std::string DataParallelCore::names_without_gradient() const {
  std::vector<bool> arrived(infos_.size());
  for (const std::int64_t index : arrival_order_) arrived[static_cast<std::size_t>(index)] = true;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    if (!arrived[i]) names.push_back(infos_[i].name);
  }
  return list_of(std::move(names));
}

std::vector<ParameterMemory> DataParallelCore::move_parameters(const BucketPlan& to) {
  std::vector<ParameterMemory> memory;
  for (const BucketSpec& spec : to.buckets) {
    memory.push_back(move_into_block(spec, tensors_.trainable, stream()));
  }
  return memory;
}

void DataParallelCore::start_pipeline() {
  pipeline_ = std::make_unique<Pipeline>(
      communicator_,
      Pipeline::Config{.exchange = options_.exchange,
                       .optimizer = options_.optimizer,
                       .schedule = options_.schedule,
                       .gradients = options_.gradients,
                       .stream = &stream(),
                       .num_threads = options_.num_threads,
                       .timeline = options_.timeline,
                       .after_update = [this](const BucketSpec& spec) { after_update(spec); }},
      infos_, plan_, move_parameters(plan_));
  pipeline_->set_gradient_scale(gradient_scale_);
  note_move();
  tell_of_messages();
}

void DataParallelCore::note_move() {
  note_homes();
  for (std::size_t i = 0; i < versions_.size(); ++i) note_version(i);
}

void DataParallelCore::recut(std::int64_t bucket_bytes) {
  BucketPlan next = plan_of(bucket_bytes);
  if (cuts_alike(next, plan_)) return;
  adopt();
  drain();
  pipeline_->replan(next, move_parameters(next));
  plan_ = std::move(next);
  note_move();
  // The exchanges of the last step are repeated.
  quiet_ = false;
}

void DataParallelCore::switch_to(const AlgorithmSwitch& to) {
  check_no_scope("switch_to()");
  check_whole();
  if (in_backward_ || num_passes_ > 0) {
    throw std::logic_error("switch_to() inside a step, which ends with its last backward()");
  }
  adopt();
  drain();
  // Before the check, so that ranks which ask for different things hear of that.
  agree_on_switch(communicator_, to, pipeline_ ? pipeline_->progress().num_steps : 0);
  ExchangeOptions next = to.after(options_.exchange);
  options_.check(next, communicator_.size());
  if (pipeline_) {
    pipeline_->switch_to(to);
  } else if (to.averages()) {
    ModelAverage(communicator_, stream(), parameter_memory());
  }
  options_.exchange = std::move(next);
  if (to.averages()) {
    average_buffers();
    bump_versions();
  }
  // Sizes of buckets are compared under one algorithm.
  if (!tuner_) return;
  tuner_.reset();
  recut(kTriedBytes.front());
  start_trials();
}

void DataParallelCore::try_buckets() {
  if (!tuner_->end_step(seconds_now())) return;
  if (!tuner_->is_over()) return recut(tuner_->size());
  const std::vector<std::int64_t> sizes = tuner_->sizes();
  std::vector<double> step_s;
  for (const double seconds : tuner_->step_s()) {
    // Added up here, so that all ranks have the same bits.
    const std::vector<double> ranks = gather_numbers(communicator_, seconds);
    step_s.push_back(std::accumulate(ranks.begin(), ranks.end(), 0.0) / communicator_.size());
  }
  const auto best = static_cast<std::size_t>(std::ranges::min_element(step_s) - step_s.begin());
  tuner_.reset();
  options_.logger.info(describe_choice(sizes, step_s, best));
  recut(sizes[best]);
}

void DataParallelCore::after_update(const BucketSpec& spec) {
  for (const BucketEntry& entry : spec.entries) {
    const auto place = static_cast<std::size_t>(entry.parameter);
    const torch::Tensor& parameter = tensors_.trainable[place].tensor;
    if (options_.stream != nullptr && parameter.grad().defined() &&
        made_on_[place] != options_.stream->native()) {
      // Its memory would be used again on the stream where it was made, which does not wait for the
      // sweep.
      options_.stream->keep_for_current(parameter.grad());
    }
    parameter.mutable_grad().reset();
    // The sweep wrote behind autograd's back: a graph that still needs the old values must notice.
    bump_version(parameter);
    note_version(place);
  }
}

void DataParallelCore::end_step() {
  if (plan_.buckets.empty()) {
    make_plan();
    offered_.assign(offered_.size(), false);
    if (!options_.dry_run) start_pipeline();
  }
  if (options_.dry_run) {
    num_passes_ = 0;
    offered_.assign(offered_.size(), false);
    for (const NamedTensor& entry : tensors_.trainable) entry.tensor.mutable_grad().reset();
    return;
  }
  // What the caller does next comes behind this step.
  static_cast<void>(stream());
  offer_rest();
  warn_of_untrained();
  offered_.assign(offered_.size(), false);
  pipeline_->finish_step();
  num_passes_ = 0;
  if (tuner_) try_buckets();
  const std::int64_t every = options_.average_buffers_every;
  if (every > 0 && ++num_steps_ % every == 0) average_buffers();
}

void DataParallelCore::tell_of_messages() {
  const std::int64_t num_refused = pipeline_->host_sharing().num_refused;
  if (num_refused == 0 || std::exchange(has_told_of_messages_, true)) return;
  options_.logger.info(concat(
      num_refused, " of ", communicator_.size(), " ranks cannot read the memory of all ranks of ",
      "their host, so messages take its place, which costs time. The system may keep the ranks ",
      "apart (containers, users), or limit files (ulimit -f), memory or mappings"));
}

void DataParallelCore::average_buffers() {
  std::vector<ParameterMemory> memory = buffer_memory();
  if (!memory.empty()) ModelAverage(communicator_, stream(), std::move(memory));
}

std::vector<ParameterMemory> DataParallelCore::parameter_memory() {
  if (pipeline_) return pipeline_->memory();
  return averaged_memory(tensors_.trainable, stream());
}

std::vector<ParameterMemory> DataParallelCore::buffer_memory() {
  std::vector<NamedTensor> averaged;
  for (const NamedTensor& entry : tensors_.buffers) {
    if (is_trained_type(entry.tensor) && entry.tensor.is_non_overlapping_and_dense()) {
      averaged.push_back(entry);
    }
  }
  return averaged_memory(averaged, stream());
}

void DataParallelCore::bump_versions() {
  for (std::size_t i = 0; i < tensors_.trainable.size(); ++i) {
    bump_version(tensors_.trainable[i].tensor);
    note_version(i);
  }
}

void DataParallelCore::note_version(std::size_t parameter) {
  versions_[parameter] = tensors_.trainable[parameter].tensor._version();
}

}  // namespace gossamer

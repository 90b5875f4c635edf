#include "core/torch/data_parallel_state.hpp"

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
#include "core/grid_lane.hpp"
#include "core/torch/backward_end.hpp"
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

std::string list_of(std::vector<std::string> names) {
  const bool all = names.size() <= kMostNames;
  names.resize(std::min(names.size(), kMostNames));
  return concat(join(names, ", "), all ? "" : ", ...");
}

void check_exchange(const ExchangeOptions& exchange, const DataParallelOptions& options,
                    int num_ranks) {
  AlgorithmSetting setting = exchange.setting();
  setting.optimizer = options.optimizer.get();
  setting.stream = options.stream;
  setting.num_ranks = num_ranks;
  setting.tries_bucket_sizes = options.bucket_bytes == 0;
  setting.average_buffers_every = options.average_buffers_every;
  exchange.algorithm.check(setting);
}

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

void DataParallelCore::State::begin_backward(const std::weak_ptr<DataParallelCore>& core) {
  in_backward = true;
  ++num_passes;
  if (!accumulating) begin_step();
  const auto end = std::make_shared<std::function<void()>>([core] {
    // After an error autograd may drop the callback when the core's stream has gone.
    if (const auto self = core.lock()) self->state_->end_backward();
  });
  callback = end;
  at_end_of_backward(end);
}

void DataParallelCore::State::end_backward() {
  in_backward = false;
  if (!accumulating) end_step();
}

void DataParallelCore::State::begin_step() {
  static_cast<void>(stream());
  adopt_written();
  quiet = false;
}

void DataParallelCore::State::offer(std::int64_t parameter, const void* native) {
  const NamedTensor& entry = tensors.trainable[static_cast<std::size_t>(parameter)];
  torch::Tensor& grad = entry.tensor.mutable_grad();
  adopt_layout(entry, grad);
  if (options.mean_over_micro_batches && num_passes > 1) {
    const torch::NoGradGuard no_grad;
    grad.div_(num_passes);
  }
  made_on[static_cast<std::size_t>(parameter)] = native;
  offer(parameter, grad);
}

void DataParallelCore::State::offer(std::int64_t parameter, const torch::Tensor& grad) {
  offered[static_cast<std::size_t>(parameter)] = true;
  pipeline->gradient_ready(parameter, block_of_tensor(grad));
}

/// Parameters whose gradient came in an earlier micro-batch only fire no hook in the last one.
void DataParallelCore::State::offer_rest() {
  for (std::size_t i = 0; i < offered.size(); ++i) {
    if (!offered[i] && tensors.trainable[i].tensor.grad().defined()) {
      offer(static_cast<std::int64_t>(i), kElsewhere);
    }
  }
}

void DataParallelCore::State::take_declared_order() {
  for (std::int64_t i = std::ssize(infos) - 1; i >= 0; --i) {
    const torch::Tensor& parameter = tensors.trainable[static_cast<std::size_t>(i)].tensor;
    if (parameter.grad().defined()) arrival_order.push_back(i);
  }
}

BucketPlan DataParallelCore::State::plan_of(std::int64_t bucket_bytes) const {
  return plan_buckets(infos, arrival_order, bucket_bytes);
}

void DataParallelCore::State::start_trials() {
  // An algorithm that sends nothing in most steps has nothing to measure in them.
  const AlgorithmEntry& entry = options.exchange.algorithm.entry();
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
  if (options.exchange.codec != nullptr && options.exchange.codec->needs_grid()) {
    config.num_before = 2 * GridLane::kWindow;
  }
  const std::int64_t period =
      options.exchange.topology ? options.exchange.topology->period().value_or(1) : 1;
  if (period <= kMostMeasured) {
    config.num_measured = (config.num_measured + period - 1) / period * period;
  }
  tuner.emplace(std::move(config));
}

void DataParallelCore::State::make_plan() {
  std::vector<std::string> names = {concat("buckets of ", options.bucket_bytes, " bytes")};
  for (const std::int64_t index : arrival_order) {
    names.push_back(infos[static_cast<std::size_t>(index)].name);
  }
  agree(communicator, "the order in which gradients arrive", join(names, "\n"));
  plan = plan_of(options.bucket_bytes > 0 ? options.bucket_bytes : kTriedBytes.front());
  if (options.bucket_bytes == 0 && !options.dry_run) start_trials();
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
  return list_of(std::move(names));
}

std::vector<ParameterMemory> DataParallelCore::State::move_parameters(const BucketPlan& to) {
  std::vector<ParameterMemory> memory;
  for (const BucketSpec& spec : to.buckets) {
    memory.push_back(move_into_block(spec, tensors.trainable, stream()));
  }
  return memory;
}

void DataParallelCore::State::start_pipeline() {
  pipeline = std::make_unique<Pipeline>(
      communicator,
      Pipeline::Config{.exchange = options.exchange,
                       .optimizer = options.optimizer,
                       .schedule = options.schedule,
                       .gradients = options.gradients,
                       .stream = &stream(),
                       .num_threads = options.num_threads,
                       .timeline = options.timeline,
                       .after_update = [this](const BucketSpec& spec) { after_update(spec); }},
      infos, plan, move_parameters(plan));
  pipeline->set_gradient_scale(gradient_scale);
  note_move();
  tell_of_messages();
}

void DataParallelCore::State::note_move() {
  note_homes();
  for (std::size_t i = 0; i < versions.size(); ++i) note_version(i);
}

void DataParallelCore::State::replan(std::int64_t bucket_bytes) {
  BucketPlan next = plan_of(bucket_bytes);
  if (cuts_alike(next, plan)) return;
  adopt_written();
  drain();
  pipeline->replan(next, move_parameters(next));
  plan = std::move(next);
  note_move();
  // The exchanges of the last step are repeated.
  quiet = false;
}

void DataParallelCore::State::switch_to(const AlgorithmSwitch& to) {
  adopt_written();
  drain();
  // Before the check, so that ranks which ask for different things hear of that.
  agree_on_switch(communicator, to, pipeline ? pipeline->progress().num_steps : 0);
  ExchangeOptions next = to.after(options.exchange);
  check_exchange(next, options, communicator.size());
  if (pipeline) {
    pipeline->switch_to(to);
  } else if (to.averages()) {
    ModelAverage(communicator, stream(), parameter_memory());
  }
  options.exchange = std::move(next);
  if (to.averages()) {
    average_buffers();
    bump_versions();
  }
  // Sizes of buckets are compared under one algorithm.
  if (!tuner) return;
  tuner.reset();
  replan(kTriedBytes.front());
  start_trials();
}

void DataParallelCore::State::try_buckets() {
  if (!tuner->end_step(seconds_now())) return;
  if (!tuner->is_over()) return replan(tuner->size());
  const std::vector<std::int64_t> sizes = tuner->sizes();
  std::vector<double> step_s;
  for (const double seconds : tuner->step_s()) {
    // Added up here, so that all ranks have the same bits.
    const std::vector<double> ranks = gather_numbers(communicator, seconds);
    step_s.push_back(std::accumulate(ranks.begin(), ranks.end(), 0.0) / communicator.size());
  }
  const auto best = static_cast<std::size_t>(std::ranges::min_element(step_s) - step_s.begin());
  tuner.reset();
  options.logger.info(describe_choice(sizes, step_s, best));
  replan(sizes[best]);
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
    note_version(place);
  }
}

void DataParallelCore::State::end_step() {
  if (plan.buckets.empty()) {
    make_plan();
    offered.assign(offered.size(), false);
    if (!options.dry_run) start_pipeline();
  }
  if (options.dry_run) {
    num_passes = 0;
    offered.assign(offered.size(), false);
    for (const NamedTensor& entry : tensors.trainable) entry.tensor.mutable_grad().reset();
    return;
  }
  // What the caller does next comes behind this step.
  static_cast<void>(stream());
  offer_rest();
  warn_of_untrained();
  offered.assign(offered.size(), false);
  pipeline->finish_step();
  num_passes = 0;
  if (tuner) try_buckets();
  const std::int64_t every = options.average_buffers_every;
  if (every > 0 && ++num_steps % every == 0) average_buffers();
}

void DataParallelCore::State::tell_of_messages() {
  const std::int64_t num_refused = pipeline->host_sharing().num_refused;
  if (num_refused == 0 || std::exchange(has_told_of_messages, true)) return;
  options.logger.info(concat(
      num_refused, " of ", communicator.size(), " ranks cannot read the memory of all ranks of ",
      "their host, so messages take its place, which costs time. The system may keep the ranks ",
      "apart (containers, users), or limit files (ulimit -f), memory or mappings"));
}

void DataParallelCore::State::average_buffers() {
  std::vector<ParameterMemory> memory = buffer_memory();
  if (!memory.empty()) ModelAverage(communicator, stream(), std::move(memory));
}

std::vector<ParameterMemory> DataParallelCore::State::parameter_memory() {
  if (pipeline) return pipeline->memory();
  return averaged_memory(tensors.trainable, stream());
}

std::vector<ParameterMemory> DataParallelCore::State::buffer_memory() {
  std::vector<NamedTensor> averaged;
  for (const NamedTensor& entry : tensors.buffers) {
    if (is_trained_type(entry.tensor) && entry.tensor.is_non_overlapping_and_dense()) {
      averaged.push_back(entry);
    }
  }
  return averaged_memory(averaged, stream());
}

void DataParallelCore::State::bump_versions() {
  for (std::size_t i = 0; i < tensors.trainable.size(); ++i) {
    bump_version(tensors.trainable[i].tensor);
    note_version(i);
  }
}

void DataParallelCore::State::note_version(std::size_t parameter) {
  versions[parameter] = tensors.trainable[parameter].tensor._version();
}

}  // namespace gossamer

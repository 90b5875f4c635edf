#include "core/step/bucketed_model.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/algorithms/outer_momentum.hpp"
#include "core/bucket/model_average.hpp"
#include "core/exchange/grid_lane.hpp"
#include "core/state/tensor_names.hpp"

namespace gossamer {
namespace {

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

/// Numbers with spaces between them.
std::vector<std::int64_t> numbers_of(const std::string& text) {
  std::vector<std::int64_t> numbers;
  std::istringstream words(text);
  for (std::int64_t number = 0; words >> number;) numbers.push_back(number);
  return numbers;
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

/// Warns of options of an algorithm that are likely to ruin the run.
void tell_doubt(const AlgorithmChoice& algorithm, const Communicator& communicator,
                const Logger& logger) {
  const std::string doubt = doubt_about_outer(algorithm);
  if (!doubt.empty() && communicator.size() > 1) logger.warning(doubt);
}

}  // namespace

BucketedModel::BucketedModel(Communicator& communicator, Options options,
                             std::vector<ParameterInfo> parameters, Host& host)
    : communicator_(communicator),
      options_(std::move(options)),
      parameters_(std::move(parameters)),
      host_(host),
      offered_(parameters_.size()) {
  std::vector<std::string> names;
  for (const ParameterInfo& info : parameters_) names.push_back(info.name);
  check_tensor_names(names, {});
  if (options_.pipeline.optimizer) check_matrices(parameters_, *options_.pipeline.optimizer);
  tell_doubt(options_.pipeline.exchange.algorithm, communicator_, options_.logger);
  options_.pipeline.after_update = [&host](const BucketSpec& spec) { host.after_update(spec); };
}

void BucketedModel::arrived(std::int64_t parameter) {
  offered_[static_cast<std::size_t>(parameter)] = true;
  arrival_order_.push_back(parameter);
}

BucketPlan BucketedModel::plan_of(std::int64_t bucket_bytes) const {
  return plan_buckets(parameters_, arrival_order_, bucket_bytes);
}

void BucketedModel::make_plan() {
  compare("the size of their buckets", concat("buckets of ", options_.bucket_bytes, " bytes"));
  merge_orders();
  plan_ = plan_of(options_.bucket_bytes > 0 ? options_.bucket_bytes : kTriedBytes.front());
  compare("their buckets", describe(plan_, parameters_));
  if (arrival_order_.size() < parameters_.size()) {
    options_.logger.warning(concat(parameters_.size() - arrival_order_.size(), " of ",
                                   parameters_.size(),
                                   " parameters had no gradient in the first backward pass; they "
                                   "are mixed, and updated when they get one: ",
                                   names_without_gradient()));
  }
  forget_offered();
}

void BucketedModel::merge_orders() {
  if (detached_) return;
  std::vector<std::string> own;
  for (const std::int64_t index : arrival_order_) own.push_back(std::to_string(index));
  std::vector<std::string> orders;
  try {
    orders = gather_distinct(communicator_, join(own, " "));
  } catch (const PeerLost&) {
    if (!communicator_.is_elastic()) throw;
    return;  // resume() compares the orders.
  }
  arrival_order_.clear();
  std::vector<bool> seen(parameters_.size());
  for (const std::string& order : orders) {
    for (const std::int64_t index : numbers_of(order)) {
      const auto place = static_cast<std::size_t>(index);
      if (place >= seen.size() || seen[place]) continue;
      seen[place] = true;
      arrival_order_.push_back(index);
    }
  }
}

std::string BucketedModel::names_without_gradient() const {
  std::vector<bool> arrived(parameters_.size());
  for (const std::int64_t index : arrival_order_) arrived[static_cast<std::size_t>(index)] = true;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!arrived[i]) names.push_back(parameters_[i].name);
  }
  return list_of(std::move(names));
}

void BucketedModel::start() {
  Pipeline::Config config = options_.pipeline;
  // A constructor that a PeerLost leaves half way would leave the parameters without buckets.
  config.begins_detached = communicator_.is_elastic();
  pipeline_ = std::make_unique<Pipeline>(communicator_, std::move(config), parameters_, plan_,
                                         host_.move_parameters(plan_));
  pipeline_->set_gradient_scale(gradient_scale_);
  host_.parameters_have_moved();
  if (communicator_.is_elastic() && !detached_) {
    const ExchangeOptions& exchange = options_.pipeline.exchange;
    try {
      pipeline_->resume({.to = {.algorithm = exchange.algorithm, .topology = exchange.topology}});
    } catch (const PeerLost&) {
      // The step goes on alone, and the next call that needs the others throws.
    }
  }
  tell_of_messages();
  if (options_.bucket_bytes == 0) start_trials();
}

void BucketedModel::tell_of_messages() {
  const std::int64_t num_refused = pipeline_->host_sharing().num_refused;
  if (num_refused == 0 || std::exchange(has_told_of_messages_, true)) return;
  options_.logger.info(concat(
      num_refused, " of ", communicator_.size(), " ranks cannot read the memory of all ranks of ",
      "their host, so messages take its place, which costs time. The system may keep the ranks ",
      "apart (containers, users), or limit files (ulimit -f), memory or mappings"));
}

void BucketedModel::start_trials() {
  const ExchangeOptions& exchange = options_.pipeline.exchange;
  // An algorithm that sends nothing in most steps has nothing to measure in them.
  const AlgorithmEntry& entry = exchange.algorithm.entry();
  const bool sends_in_every_step =
      entry.topologies != TopologyKind::kNone || entry.equal_models == EqualModels::kAfterEveryStep;
  if (!sends_in_every_step) return;
  BucketTuner::Config config;
  // Sizes that cut the same buckets are tried once.
  for (const std::int64_t size : kTriedBytes) {
    if (config.sizes.empty() || !cuts_alike(plan_of(size), plan_of(config.sizes.back()))) {
      config.sizes.push_back(size);
    }
  }
  if (config.sizes.size() == 1) return;
  // Until there is a grid, messages are plain.
  if (exchange.codec != nullptr && exchange.codec->needs_grid()) {
    config.num_before = 2 * GridLane::kWindow;
  }
  const std::int64_t period = exchange.topology ? exchange.topology->period().value_or(1) : 1;
  if (period <= kMostMeasured) {
    config.num_measured = (config.num_measured + period - 1) / period * period;
  }
  tuner_.emplace(std::move(config));
}

void BucketedModel::offer(std::int64_t parameter, const ConstBlock& gradient) {
  offered_[static_cast<std::size_t>(parameter)] = true;
  pipeline_->gradient_ready(parameter, gradient);
}

void BucketedModel::finish_step() {
  forget_offered();
  pipeline_->finish_step();
  if (tuner_) try_buckets();
}

void BucketedModel::try_buckets() {
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

void BucketedModel::recut(std::int64_t bucket_bytes) {
  if (communicator_.is_elastic()) throw std::logic_error("replan() where ranks may be lost");
  BucketPlan next = plan_of(bucket_bytes);
  if (cuts_alike(next, plan_)) return;
  host_.settle_parameters();
  pipeline_->replan(next, host_.move_parameters(next));
  plan_ = std::move(next);
  host_.parameters_have_moved();
}

void BucketedModel::replan(std::int64_t bucket_bytes) {
  tuner_.reset();
  recut(bucket_bytes);
}

void BucketedModel::skip_trial() {
  if (tuner_) tuner_->skip_step();
}

void BucketedModel::set_gradient_scale(double scale) {
  gradient_scale_ = scale;
  if (pipeline_) pipeline_->set_gradient_scale(scale);
}

void BucketedModel::set_clipping(ClipMode mode, double norm) {
  options_.pipeline.gradients.clip_mode = mode;
  options_.pipeline.gradients.clip_norm = norm;
  if (pipeline_) pipeline_->set_clipping(mode, norm);
}

void BucketedModel::switch_to(const AlgorithmSwitch& to,
                              const std::function<void(const ExchangeOptions& next)>& check,
                              const std::function<void()>& average) {
  host_.settle_parameters();
  // Before the check, so that ranks which ask for different things hear of that.
  agree_on_switch(communicator_, to, pipeline_ ? pipeline_->progress().num_steps : 0);
  ExchangeOptions next = to.after(options_.pipeline.exchange);
  check(next);
  if (pipeline_) {
    pipeline_->switch_to(to);
  } else if (to.averages()) {
    average();
  }
  const bool is_other = next.algorithm.text() != options_.pipeline.exchange.algorithm.text();
  options_.pipeline.exchange = std::move(next);
  if (is_other) tell_doubt(options_.pipeline.exchange.algorithm, communicator_, options_.logger);
  // Sizes of buckets are compared under one algorithm.
  if (!tuner_) return;
  tuner_.reset();
  recut(kTriedBytes.front());
  start_trials();
}

void BucketedModel::detach() {
  detached_ = true;
  if (pipeline_) pipeline_->detach();
}

void BucketedModel::resume(const Pipeline::Resume& wanted,
                           const std::function<void(const ExchangeOptions& next)>& check,
                           const std::function<void(double weight)>& average) {
  std::vector<std::string> names;
  for (const std::int64_t index : arrival_order_) names.push_back(std::to_string(index));
  const std::string order = join(names, " ");
  const std::vector<std::string> digests = gather_digests(communicator_, order);
  const std::string none = digest_of("");
  // Rank 0 never joins where another rank has the model.
  const bool differ = std::ranges::any_of(digests, [&](const std::string& digest) {
    return digest != none && digest != digests.front();
  });
  if (differ) throw ConfigError("the ranks got their gradients in different orders");
  std::string first = order;
  // A rank that joins has no order yet, and takes that of rank 0.
  if (std::ranges::count(digests, digests.front()) < std::ssize(digests)) {
    first = communicator_.all_gather(communicator_.rank() == 0 ? order : "").front();
  }
  if (!pipeline_ && !first.empty()) take_order(numbers_of(first));
  ExchangeOptions next = wanted.to.after(options_.pipeline.exchange);
  check(next);
  if (pipeline_) {
    pipeline_->resume(wanted);
  } else {
    const MeanWeight mean = mean_weight(communicator_, /*counts=*/!wanted.joins);
    agree_on_switch(communicator_, wanted.to, 0);
    if (mean.num_counting < communicator_.size() || wanted.to.averages()) average(mean.weight);
  }
  options_.pipeline.exchange = std::move(next);
  detached_ = false;
}

void BucketedModel::take_order(std::vector<std::int64_t> order) {
  arrival_order_ = std::move(order);
  make_plan();
  start();
}

void BucketedModel::compare(std::string_view what, const std::string& text) {
  if (detached_) return;
  try {
    agree(communicator_, what, text);
  } catch (const PeerLost&) {
    if (!communicator_.is_elastic()) throw;
  }
}

void BucketedModel::check(const ExchangeOptions& exchange) const {
  AlgorithmSetting setting = options_.pipeline.setting(exchange, communicator_);
  setting.tries_bucket_sizes = options_.bucket_bytes == 0;
  exchange.algorithm.check(setting);
}

void BucketedModel::visit(StateVisitor& visitor, std::map<std::string, MemoryLayout> layouts) {
  if (!visitor.loads() && !pipeline_) {
    throw std::logic_error("visit() before the first step, when there is no state to save");
  }
  skip_trial();
  visit_arrival_order(visitor);
  std::int64_t is_row_major = 1;
  visitor.number(kRowMajorName, is_row_major);
  RowMajorVisitor rows(visitor, std::move(layouts));
  pipeline_->visit(rows);
}

void BucketedModel::visit_arrival_order(StateVisitor& visitor) {
  std::int64_t count = std::ssize(arrival_order_);
  visitor.number("run/num_arrived", count);
  std::vector<std::int64_t> order = arrival_order_;
  if (visitor.loads()) {
    if (count < 0 || count > std::ssize(parameters_)) {
      throw CheckpointError("the saved order of gradients does not fit the model");
    }
    order.assign(static_cast<std::size_t>(count), 0);
  }
  visitor.block("run/arrival_order",
                {.data = order.data(), .numel = count, .dtype = DType::kInt64});
  // A model that has buckets keeps them: the state is saved by parameter.
  if (!visitor.loads() || pipeline_) return;
  std::vector<bool> seen(parameters_.size());
  for (const std::int64_t index : order) {
    const auto place = static_cast<std::size_t>(index);
    if (index < 0 || place >= seen.size() || seen[place]) {
      throw CheckpointError("the saved order of gradients does not fit the model");
    }
    seen[place] = true;
  }
  take_order(std::move(order));
}

const PipelineMetrics& BucketedModel::metrics() const {
  return pipeline_ ? pipeline_->metrics() : no_metrics_;
}

const Progress& BucketedModel::progress() const {
  return pipeline_ ? pipeline_->progress() : no_progress_;
}

double BucketedModel::lr() const {
  return pipeline_ ? pipeline_->lr() : options_.pipeline.schedule->lr(0);
}

double BucketedModel::last_lr() const {
  return pipeline_ ? pipeline_->last_lr() : options_.pipeline.schedule->lr(0);
}

double BucketedModel::model_weight() const { return pipeline_ ? pipeline_->model_weight() : 1.0; }

HostSharing BucketedModel::host_sharing() const {
  return pipeline_ ? pipeline_->host_sharing() : HostSharing();
}

}  // namespace gossamer

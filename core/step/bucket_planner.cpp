#include "core/step/bucket_planner.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/bucket/model_average.hpp"
#include "core/exchange/grid_lane.hpp"

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

/// The order that a text of order_text() holds.
std::vector<std::int64_t> order_of(const std::string& text) {
  std::vector<std::int64_t> numbers;
  std::istringstream words(text);
  for (std::int64_t number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

/// Makes a collective call. Where ranks may be lost, a PeerLost leaves the call undone.
template <class Call>
void unless_lost(Communicator& communicator, const Call& call) {
  try {
    call();
  } catch (const PeerLost&) {
    if (!communicator.is_elastic()) throw;
  }
}

}  // namespace

std::string BucketPlanner::order_text() const {
  std::vector<std::string> numbers;
  for (const std::int64_t index : order_) numbers.push_back(std::to_string(index));
  return join(numbers, " ");
}

std::vector<std::int64_t> BucketPlanner::visit(StateVisitor& visitor,
                                               std::int64_t num_parameters) const {
  const auto check = [](bool fits) {
    if (!fits) throw CheckpointError("the saved order of gradients does not fit the model");
  };
  std::int64_t count = std::ssize(order_);
  visitor.number("run/num_arrived", count);
  std::vector<std::int64_t> order = order_;
  if (visitor.loads()) {
    check(count >= 0 && count <= num_parameters);
    order.assign(static_cast<std::size_t>(count), 0);
  }
  visitor.block("run/arrival_order",
                {.data = order.data(), .numel = count, .dtype = DType::kInt64});
  std::vector<bool> seen(static_cast<std::size_t>(num_parameters));
  for (const std::int64_t index : order) {
    check(index >= 0 && index < num_parameters && !seen[static_cast<std::size_t>(index)]);
    seen[static_cast<std::size_t>(index)] = true;
  }
  return order;
}

std::vector<std::int64_t> BucketPlanner::agree_on_order(Communicator& communicator) const {
  const std::string order = order_text();
  const std::vector<std::string> digests = gather_digests(communicator, order);
  const std::string none = digest_of("");
  // Rank 0 never joins where another rank has the model.
  const bool differ = std::ranges::any_of(digests, [&](const std::string& digest) {
    return digest != none && digest != digests.front();
  });
  if (differ) throw ConfigError("the ranks got their gradients in different orders");
  if (std::ranges::count(digests, digests.front()) == std::ssize(digests)) return order_;
  // A rank that joins has no order yet, and takes that of rank 0.
  return order_of(communicator.all_gather(communicator.rank() == 0 ? order : "").front());
}

void BucketPlanner::make_plan(Communicator* communicator,
                              const std::vector<ParameterInfo>& parameters) {
  const auto compare = [&](std::string_view what, const std::string& text) {
    if (communicator == nullptr) return;
    unless_lost(*communicator, [&] { agree(*communicator, what, text); });
  };
  compare("the size of their buckets", concat("buckets of ", bucket_bytes_, " bytes"));
  if (communicator != nullptr) {
    unless_lost(*communicator, [&] { merge_orders(*communicator, parameters.size()); });
  }
  plan_ = cut(parameters, bucket_bytes_ > 0 ? bucket_bytes_ : first_size());
  compare("their buckets", describe(plan_, parameters));
  warn_of_missing_gradients(parameters);
}

void BucketPlanner::merge_orders(Communicator& communicator, std::size_t num_parameters) {
  const std::vector<std::string> orders = gather_distinct(communicator, order_text());
  order_.clear();
  std::vector<bool> seen(num_parameters);
  for (const std::string& order : orders) {
    for (const std::int64_t index : order_of(order)) {
      const auto place = static_cast<std::size_t>(index);
      if (place >= seen.size() || seen[place]) continue;
      seen[place] = true;
      order_.push_back(index);
    }
  }
}

void BucketPlanner::warn_of_missing_gradients(const std::vector<ParameterInfo>& parameters) const {
  if (order_.size() >= parameters.size()) return;
  std::vector<bool> arrived(parameters.size());
  for (const std::int64_t index : order_) arrived[static_cast<std::size_t>(index)] = true;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!arrived[i]) names.push_back(parameters[i].name);
  }
  const std::size_t count = names.size();
  logger_.warning(concat(count, " of ", parameters.size(),
                         " parameters had no gradient in the first backward pass; they are mixed, ",
                         "and updated when they get one: ", list_of(std::move(names))));
}

BucketPlan BucketPlanner::cut(const std::vector<ParameterInfo>& parameters,
                              std::int64_t bucket_bytes) const {
  return plan_buckets(parameters, order_, bucket_bytes);
}

bool BucketPlanner::is_present(const BucketPlan& plan) const { return cuts_alike(plan, plan_); }

std::int64_t BucketPlanner::first_size() { return kTriedBytes.front(); }

void BucketPlanner::start_trials(const ExchangeOptions& exchange,
                                 const std::vector<ParameterInfo>& parameters) {
  if (bucket_bytes_ > 0) return;
  // An algorithm that sends nothing in most steps has nothing to measure in them.
  const AlgorithmEntry& entry = exchange.algorithm.entry();
  const bool sends_in_every_step =
      entry.topologies != TopologyKind::kNone || entry.equal_models == EqualModels::kAfterEveryStep;
  if (!sends_in_every_step) return;
  BucketTuner::Config config;
  // Sizes that cut the same buckets are tried once.
  for (const std::int64_t size : kTriedBytes) {
    if (config.sizes.empty() ||
        !cuts_alike(cut(parameters, size), cut(parameters, config.sizes.back()))) {
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

std::optional<std::int64_t> BucketPlanner::next_size(Communicator& communicator) {
  if (!tuner_ || !tuner_->end_step(seconds_now())) return std::nullopt;
  if (!tuner_->is_over()) return tuner_->size();
  const std::vector<std::int64_t> sizes = tuner_->sizes();
  std::vector<double> step_s;
  for (const double seconds : tuner_->step_s()) {
    // Added up here, so that all ranks have the same bits.
    const std::vector<double> ranks = gather_numbers(communicator, seconds);
    step_s.push_back(std::accumulate(ranks.begin(), ranks.end(), 0.0) / communicator.size());
  }
  const auto best = static_cast<std::size_t>(std::ranges::min_element(step_s) - step_s.begin());
  tuner_.reset();
  logger_.info(describe_choice(sizes, step_s, best));
  return sizes[best];
}

}  // namespace gossamer

#include "apps/lab/plan/row_predictor.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "optim/registry.hpp"

namespace gossamer::apps {
namespace {

// Limits that keep the work for each topology below about a second.
constexpr std::int64_t kRankBucketSteps = 100'000;
constexpr std::int64_t kFewestSteps = 12;
constexpr std::int64_t kMostSteps = 96;
// How many times as many steps a common period of algorithm and topology may take.
constexpr std::int64_t kMostCommonSteps = 4;
constexpr std::int64_t kLeastWarmup = 8;
// Every bucket of an average has its latencies.
constexpr int kMostRareBuckets = 4;
// Ranks, buckets and steps that one prediction of a rare way follows, at most.
constexpr std::int64_t kMostFollowed = 8'000'000;

/// Number of steps to follow a topology for: whole periods if these are short.
std::int64_t num_steps(const StepModel& model, std::int64_t period) {
  const std::int64_t per_step = std::int64_t{model.world.size} * std::ssize(model.bucket_bytes);
  const std::int64_t steps = std::clamp(kRankBucketSteps / per_step, kFewestSteps, kMostSteps);
  if (period > 2 * steps) return steps;
  return (steps + period - 1) / period * period;
}

/// The model with so large buckets that it has a few.
StepModel with_large_buckets(StepModel model) {
  if (std::ssize(model.bucket_bytes) <= kMostRareBuckets) return model;
  const double bytes = std::accumulate(model.bucket_bytes.begin(), model.bucket_bytes.end(), 0.0);
  model.bucket_bytes = split_into_buckets(bytes, bytes / kMostRareBuckets, kMostRareBuckets);
  return model;
}

StepPrediction predict(const Exchanges& exchanges, const ExchangeSchedule& schedule,
                       StepModel model) {
  const Place* const place = exchanges.place;
  const Topology* const topology = place != nullptr ? place->topology.get() : nullptr;
  // All ranks wait for one another in each step, so without stragglers each period takes equally
  // long. A step of many ranks under a codec has thousands of transfers; few steps save seconds.
  if (schedule.waits_in_step() && topology == nullptr && model.straggler_cv == 0.0) {
    model.num_warmup = schedule.period();
    model.num_steps = schedule.period();
  }
  return predict_schedule(model, schedule, topology, exchanges.codec);
}

/// The most steps that an exchange travels.
std::int64_t latest(const ExchangeSchedule& schedule) {
  std::int64_t late = 0;
  for (std::int64_t step = 0; step < schedule.period(); ++step) {
    for (const PlannedExchange& each : schedule.at(step, 0)) late = std::max(late, each.late);
  }
  return late;
}

}  // namespace

RowPredictor::RowPredictor(const PlanOptions& options)
    : options_(options),
      large_(with_large_buckets(options.model)),
      optimizer_(options.optimizer ? options.optimizer : make_optimizer("adamw")),
      local_s_(predict_local(options.model).step_s) {}

bool RowPredictor::follows_too_much(const Exchanges& exchanges) const {
  const StepModel model = model_of(exchanges, exchanges.every);
  return (model.num_steps + model.num_warmup) * model.world.size * std::ssize(model.bucket_bytes) >
         kMostFollowed;
}

int RowPredictor::node_size_of(const Exchanges& exchanges) {
  const bool has_nodes =
      exchanges.place != nullptr && exchanges.choice.topologies() == TopologyKind::kNodes;
  return has_nodes ? exchanges.place->topology->round(0).node_size : 1;
}

ExchangeSchedule RowPredictor::schedule_of(const Exchanges& exchanges) const {
  const StepModel& model = buckets_of(exchanges);
  std::vector<std::int64_t> numel;
  for (const double bytes : model.bucket_bytes) {
    numel.push_back(static_cast<std::int64_t>(bytes / 4.0));
  }
  return ExchangeSchedule({.algorithm = exchanges.choice,
                           .optimizer = *optimizer_,
                           .world_size = model.world.size,
                           .node_size = node_size_of(exchanges),
                           .codec = exchanges.codec,
                           .bucket_numel = std::move(numel)});
}

StepModel RowPredictor::model_of(const Exchanges& exchanges, std::int64_t period) const {
  StepModel model = buckets_of(exchanges);
  const Place* const place = exchanges.place;
  const std::int64_t rounds = place != nullptr ? place->topology->period().value_or(1) : 1;
  model.num_steps = num_steps(model, rounds);
  if (place != nullptr && place->variant.whole_periods) {
    model.num_steps = std::max(model.num_steps, rounds);
  }
  const std::int64_t both = exchanges.every > 0 ? rounds * period : std::lcm(rounds, period);
  const bool is_short = exchanges.every > 0 || both <= kMostCommonSteps * model.num_steps;
  const std::int64_t steps = is_short ? both : period;
  model.num_steps = (model.num_steps + steps - 1) / steps * steps;
  // An average of the last period is waited for in this one.
  model.num_warmup = std::max({model.num_warmup, kLeastWarmup, period});
  return model;
}

PlanRow RowPredictor::row_of(const Exchanges& exchanges, const ExchangeSchedule& schedule) const {
  const Place* const place = exchanges.place;
  const StepModel model = model_of(exchanges, schedule.period());
  // Stragglers draw other delays in other numbers of steps.
  const double local_s = model.straggler_cv > 0.0 ? predict_local(model).step_s : local_s_;
  PlanRow row{.exchange = exchanges.name,
              .topology = place != nullptr ? place->variant.label() : "",
              .codec = exchanges.codec != nullptr ? std::string(exchanges.codec->name()) : "fp32",
              .every = schedule.period(),
              .late = latest(schedule),
              .step = predict(exchanges, schedule, model),
              .yaml = yaml_of(exchanges)};
  row.efficiency = local_s / row.step.step_s;
  row.fits = row.step.step_s <= (1.0 + options_.budget) * local_s;
  row.allowed_s = local_s_ * static_cast<double>(row.late);
  if (exchanges.choice.entry().equal_models == EqualModels::kAfterEveryStep) {
    row.rounds = RoundCount{.rounds = 1};
  } else if (place != nullptr && exchanges.codec == nullptr && schedule.only_mixes()) {
    row.rounds = place->rounds;
  }
  return row;
}

double RowPredictor::exchange_s(const Exchanges& exchanges,
                                const ExchangeSchedule& schedule) const {
  // Without anything else, the steps of a period take as long as an exchange.
  StepModel model = model_of(exchanges, schedule.period());
  model.compute_s = 0.0;
  model.links.update_bytes_per_s = 0.0;
  return static_cast<double>(schedule.period()) * predict(exchanges, schedule, model).step_s;
}

std::string RowPredictor::yaml_of(const Exchanges& exchanges) const {
  const std::string& given = exchanges.choice.given();
  const std::string name = exchanges.choice.name();
  std::string text = given.empty() ? concat("algorithm: ", name, "\n")
                                   : concat("algorithm: {name: ", name, ", ", given, "}\n");
  std::vector<std::string> comm;
  if (exchanges.place != nullptr) {
    const TopologyVariant& variant = exchanges.place->variant;
    text += concat("topology: ", variant.section(), "\n");
    if (variant.local_size > 0) comm.push_back(concat("local_size: ", variant.local_size));
  }
  if (exchanges.codec != nullptr) comm.push_back(concat("codec: ", exchanges.codec->name()));
  if (!comm.empty()) text += concat("comm: {", join(comm, ", "), "}\n");
  if (exchanges.takes_recipe) text += "train: {recipe: allreduce}\n";
  const bool has_large = std::ssize(large_.bucket_bytes) < std::ssize(options_.model.bucket_bytes);
  if (exchanges.every > 0 && has_large) {
    constexpr double kMib = 1024.0 * 1024.0;
    const double size = std::ceil(large_.bucket_bytes.front() / kMib);
    text += concat("buckets: {size_mb: ", static_cast<std::int64_t>(size), "}\n");
  }
  return text;
}

}  // namespace gossamer::apps

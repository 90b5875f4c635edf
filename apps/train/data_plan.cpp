#include "apps/train/data_plan.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

/// Steps of the whole run.
std::int64_t count_steps(const RunConfig& config, const BatchLoader& batches) {
  if (config.steps) return *config.steps;
  const std::int64_t steps = batches.dealer().step_after(config.epochs);
  if (steps < 1) {
    const std::int64_t all = config.epochs * batches.batches_per_epoch();
    throw ConfigError(concat("train.accumulate: is ", config.accumulate, ", but a rank has only ",
                             all, " batches in run.epochs, allowed: 1 to ", all));
  }
  return steps;
}

/// Counts the steps of the whole run.
StepCount make_steps(const RunConfig& config, const BatchLoader& batches) {
  const std::int64_t total = count_steps(config, batches);
  const bool in_step = !config.exchange.algorithm.entry().asynchronous();
  return {total, in_step, config.make_schedule(total)};
}

/// Deals the samples out. Throws ConfigError.
BatchLoader::Setup batches_of(const RunConfig& config, const TrainingSetup& setup,
                              const std::vector<WorldChange>& changes) {
  const Samples& train = *setup.data->train;
  const auto labels = train.labels();
  if (config.dirichlet_alpha && labels.empty()) {
    throw ConfigError(
        "data.dirichlet_alpha: deals samples out by class, and these data have numbers as "
        "targets, allowed: null");
  }
  Dealer::Setup deal{.labels = {labels.begin(), labels.end()},
                     .seed = config.seed,
                     .dirichlet_alpha = config.dirichlet_alpha};
  // Samples without a class are all alike.
  deal.labels.resize(static_cast<std::size_t>(train.size()));
  return {.samples = setup.data->train,
          .dealer = Dealer(std::move(deal), changes),
          .augmentation = config.augmentation,
          .seed = config.seed,
          .rank = setup.world.rank,
          .prefetch = config.prefetch};
}

}  // namespace

DataPlan::DataPlan(const RunConfig& config, const TrainingSetup& setup)
    : config_(config),
      setup_(setup),
      changes_({present_world(0)}),
      batches_(std::in_place, batches_of(config, setup, changes_)),
      steps_(make_steps(config, *batches_)) {}

WorldChange DataPlan::present_world(std::int64_t step) const {
  return {.step = step,
          .num_ranks = setup_.world.size,
          .batch_size = config_.batch_size,
          .accumulate = config_.accumulate};
}

Batch DataPlan::take(std::int64_t part) {
  return batches_->take(batches_->dealer().first_batch_of(steps_.own()) + part);
}

void DataPlan::take_changes(const std::vector<std::int64_t>& changes, std::int64_t step) {
  changes_ = changes_of(changes);
  deal_from(step);
}

void DataPlan::deal_from(std::int64_t step) {
  // The first says how the run began, even where it has changed before its first step.
  const auto later = std::remove_if(changes_.begin() + 1, changes_.end(),
                                    [step](const auto& change) { return change.step >= step; });
  changes_.erase(later, changes_.end());
  changes_.push_back(present_world(step));
  deal();
}

void DataPlan::deal() {
  batches_.emplace(batches_of(config_, setup_, changes_));
  if (!config_.comm.scale_lr || !steps_.in_step()) return;
  steps_.scale_lr(static_cast<double>(changes_.back().num_ranks) / changes_.front().num_ranks);
}

void DataPlan::deal_on(std::optional<std::int64_t> total) {
  const WorldChange last = changes_.back();
  const bool is_another = last != present_world(last.step);
  if (is_another) {
    deal_from(steps_.run());
  } else {
    deal();
  }
  if (config_.steps) return;
  // The run has the steps of its beginning, unless this is a new one.
  const std::int64_t steps = total && !is_another ? *total : count_steps(config_, *batches_);
  steps_.replan(steps, config_.make_schedule(steps));
}

void DataPlan::visit_changes(StateVisitor& visitor) {
  constexpr const char* kNumber = "train/num_changes";
  std::int64_t total = steps_.total();
  const std::int64_t own_epochs = config_.steps ? 0 : config_.epochs;
  std::int64_t epochs = own_epochs;
  const bool has_some = visitor.loads() ? visitor.holds(kNumber) : changes_.size() > 1;
  if (has_some) {
    std::int64_t count = std::ssize(changes_);
    visitor.number(kNumber, count);
    visitor.number("train/total_steps", total);
    visitor.number("train/epochs", epochs);
    constexpr std::int64_t kMostChanges = 1'000'000;
    if (count < 1 || count > kMostChanges) {
      throw CheckpointError(concat("the number of ranks has changed ", count, " times"));
    }
    std::vector<std::int64_t> numbers = numbers_of(changes_);
    numbers.resize(kNumbersOfChange * static_cast<std::size_t>(count));
    visitor.block("train/changes", block_of(std::span(numbers)));
    if (visitor.loads()) changes_ = changes_of(numbers);
  }
  // Ranks that do not go in step have used other samples than their mean step tells.
  if (!visitor.loads() || !steps_.in_step()) return;
  if (changes_.back().step > steps_.run()) {
    throw CheckpointError("the number of ranks has changed after the step of the checkpoint");
  }
  deal_on(has_some && epochs == own_epochs ? std::optional(total) : std::nullopt);
}

void DataPlan::begin_like(const Manifest& manifest) {
  // Ranks that do not go in step have no common changes.
  if (!steps_.in_step()) return;
  WorldChange beginning = changes_.front();
  beginning.num_ranks = manifest.world_size;
  const auto take = [&manifest](const std::string& key, std::int64_t& number) {
    const auto found = manifest.run.find(key);
    if (found == manifest.run.end() || !parse_whole(found->second, number)) number = 0;
  };
  take("data.batch_size", beginning.batch_size);
  take("train.accumulate", beginning.accumulate);
  changes_ = changes_of(numbers_of({beginning}));
}

}  // namespace gossamer::apps

#include "gossamer/core/engine/bucket_manager.hpp"

#include <stdexcept>
#include <utility>

#include "gossamer/core/base/error.hpp"
#include "gossamer/core/base/text.hpp"

namespace gossamer {
namespace {

BucketManager::Config checked(BucketManager::Config config) {
  if (!config.optimizer) throw ConfigError("training needs an optimizer");
  if (!config.schedule) throw ConfigError("training needs a learning-rate schedule");
  return config;
}

}  // namespace

BucketManager::BucketManager(Communicator& communicator, Config config,
                             std::vector<ParameterInfo> parameters, const BucketPlan& plan,
                             std::vector<Buffer> memory)
    : config_(checked(std::move(config))),
      policy_(config_.gradients,
              communicator.world_ranks()[static_cast<std::size_t>(communicator.rank())]),
      pool_(config_.num_threads),
      places_(parameters.size()),
      context_{.communicator = communicator,
               .topology = config_.topology.get(),
               .optimizer = *config_.optimizer,
               .schedule = *config_.schedule,
               .buckets = buckets_,
               .metrics = metrics_,
               .policy = policy_,
               .simd = config_.simd,
               .pool = pool_,
               .after_update = [this](const Bucket& bucket) {
                 if (config_.after_update) config_.after_update(bucket.spec());
               }} {
  if (memory.size() != plan.buckets.size()) {
    throw std::logic_error("BucketManager: one buffer per bucket is needed");
  }
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    buckets_.emplace_back(static_cast<std::int64_t>(b), plan.buckets[b], parameters,
                          std::move(memory[b]), config_.optimizer->num_states());
    const auto& entries = plan.buckets[b].entries;
    for (std::size_t e = 0; e < entries.size(); ++e) {
      places_[static_cast<std::size_t>(entries[e].parameter)] = {b, static_cast<std::int64_t>(e)};
    }
  }
  algorithm_ = make_algorithm(config_.algorithm, context_);
}

void BucketManager::gradient_ready(std::int64_t parameter, ConstBlock gradient) {
  const ScopedTimer timer(metrics_.pipeline_s);
  const Place place = places_.at(static_cast<std::size_t>(parameter));
  Bucket& bucket = buckets_[place.bucket];
  bucket.offer(place.entry, gradient);
  context_.inspect(bucket, place.entry, gradient);
  if (bucket.complete()) algorithm_->on_ready(bucket);
}

void BucketManager::finish_step() {
  const ScopedTimer timer(metrics_.pipeline_s);
  for (Bucket& bucket : buckets_) {
    if (!bucket.complete()) algorithm_->on_ready(bucket);
  }
  algorithm_->on_step_end();
  if (policy_.end_step(context_.all_squares(), algorithm_->mean_factor())) ++metrics_.num_skipped;
  for (Bucket& bucket : buckets_) bucket.begin_step();
  ++metrics_.num_steps;
}

std::vector<Block> BucketManager::blocks() const {
  std::vector<Block> blocks;
  for (const Bucket& bucket : buckets_) blocks.push_back(bucket.parameters());
  return blocks;
}

}  // namespace gossamer

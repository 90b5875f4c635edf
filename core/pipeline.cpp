#include "core/pipeline.hpp"

#include <stdexcept>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

Pipeline::Config checked(Pipeline::Config config) {
  if (!config.optimizer) throw ConfigError("training needs an optimizer");
  if (!config.schedule) throw ConfigError("training needs a learning-rate schedule");
  return config;
}

std::int64_t num_entries(const BucketPlan& plan) {
  std::int64_t count = 0;
  for (const BucketSpec& bucket : plan.buckets) count += std::ssize(bucket.entries);
  return count;
}

}  // namespace

Pipeline::Pipeline(Communicator& communicator, Config config, std::vector<ParameterInfo> parameters,
                   const BucketPlan& plan, std::vector<ParameterMemory> memory)
    : config_(checked(std::move(config))),
      stream_(config_.stream != nullptr ? *config_.stream : inline_stream_),
      pool_(config_.num_threads),
      policy_(config_.gradients, stream_, num_entries(plan), std::ssize(plan.buckets)),
      places_(parameters.size()),
      context_{.communicator = communicator,
               .topology = config_.topology.get(),
               .optimizer = *config_.optimizer,
               .schedule = *config_.schedule,
               .buckets = buckets_,
               .metrics = metrics_,
               .policy = policy_,
               .stream = stream_,
               .simd = config_.simd,
               .pool = pool_,
               .after_update =
                   [this](const Bucket& bucket) {
                     if (config_.after_update) config_.after_update(bucket.spec());
                   }},
      scope_(stream_) {
  if (memory.size() != plan.buckets.size()) {
    throw std::logic_error("Pipeline: memory for every bucket is needed");
  }
  std::int64_t first_entry = 0;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const auto& entries = plan.buckets[b].entries;
    const Block squares = part_of(policy_.squares(), first_entry, std::ssize(entries));
    buckets_.emplace_back(static_cast<std::int64_t>(b), plan.buckets[b], parameters,
                          Bucket::Memory{std::move(memory[b]), squares},
                          config_.optimizer->num_states(), stream_);
    for (std::size_t e = 0; e < entries.size(); ++e) {
      places_[static_cast<std::size_t>(entries[e].parameter)] = {b, static_cast<std::int64_t>(e)};
    }
    first_entry += std::ssize(entries);
  }
  algorithm_ = make_algorithm(config_.algorithm, context_);
}

void Pipeline::close_step() {
  if (!std::exchange(step_is_open_, false)) return;
  const auto place = context_.close_step();
  if (!place) return;
  const int self = own_world_rank(context_.communicator);
  AlgorithmContext::refuse(*place, metrics_.num_steps,
                           algorithm_->culprit(place->bucket, place->entry, self));
}

void Pipeline::gradient_ready(std::int64_t parameter, ConstBlock gradient) {
  const ScopedTimer timer(metrics_.pipeline_s);
  close_step();
  const Place place = places_.at(static_cast<std::size_t>(parameter));
  Bucket& bucket = buckets_[place.bucket];
  bucket.offer(place.entry, gradient);
  if (!context_.inspect(bucket, place.entry, gradient)) {
    AlgorithmContext::refuse({bucket, place.entry}, metrics_.num_steps + 1,
                             own_world_rank(context_.communicator));
  }
  if (bucket.complete()) algorithm_->on_ready(bucket);
}

void Pipeline::finish_step() {
  const ScopedTimer timer(metrics_.pipeline_s);
  close_step();
  last_lr_ = context_.lr();
  for (Bucket& bucket : buckets_) {
    if (!bucket.complete()) algorithm_->on_ready(bucket);
  }
  algorithm_->on_step_end();
  policy_.end_step(algorithm_->mean_factor());
  for (Bucket& bucket : buckets_) bucket.begin_step();
  ++metrics_.num_steps;
  step_is_open_ = true;
  if (stream_.immediate()) close_step();
}

void Pipeline::drain() {
  algorithm_->drain();
  stream_.synchronize();
  context_.communicator.check();
  close_step();
}

const PipelineMetrics& Pipeline::metrics() {
  close_step();
  return metrics_;
}

double Pipeline::lr() {
  close_step();
  return context_.lr();
}

std::vector<ParameterMemory> Pipeline::memory() const {
  std::vector<ParameterMemory> memory;
  for (const Bucket& bucket : buckets_) memory.push_back(bucket.model_memory());
  return memory;
}

}  // namespace gossamer

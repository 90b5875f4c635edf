#include "core/step/pipeline.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/exchange/peer_lanes.hpp"
#include "core/state/tensor_names.hpp"
#include "core/step/step.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

Pipeline::Config checked(Pipeline::Config config) {
  if (config.external_optimizer) {
    if (config.optimizer) throw ConfigError("training has two rules: an optimizer, and its own");
    config.optimizer = make_mixing_optimizer();
  }
  if (!config.optimizer) throw ConfigError("training needs an optimizer");
  if (!config.schedule) throw ConfigError("training needs a learning-rate schedule");
  return config;
}

/// Throws ConfigError for optimizers that do not suit the parameters, or one another.
std::vector<ParameterInfo> checked(std::vector<ParameterInfo> parameters,
                                   const Pipeline::Config& config) {
  std::vector<std::string> names;
  for (const ParameterInfo& info : parameters) names.push_back(info.name);
  check_tensor_names(names, {});
  check_matrices(parameters, *config.optimizer);
  for (const ParameterInfo& info : parameters) {
    const Optimizer& own = info.optimizer ? *info.optimizer : *config.optimizer;
    const bool differs = !same_kind(own, *config.optimizer);
    if (differs && config.external_optimizer) {
      throw ConfigError(concat(info.name, " has an optimizer, and training has a rule of its own"));
    }
    if (differs && (own.frozen_moments() || config.optimizer->frozen_moments())) {
      throw ConfigError(concat(info.name,
                               " has another optimizer than the others, and ranks share ",
                               "the momentum of qadam; take one optimizer for all parameters"));
    }
    if (own.needs_matrices() && config.stream != nullptr && !config.stream->on_host() &&
        !config.orthogonalize) {
      throw ConfigError("the optimizer muon on a GPU needs LibTorch's products of matrices");
    }
  }
  return parameters;
}

}  // namespace

AlgorithmSetting Pipeline::Config::setting(const ExchangeOptions& wanted, int num_ranks,
                                           bool is_elastic) const {
  AlgorithmSetting setting = wanted.setting();
  setting.optimizer = optimizer.get();
  setting.group_optimizers = group_optimizers;
  setting.has_external_optimizer = external_optimizer != nullptr;
  setting.stream = stream;
  setting.on_gpu = stream != nullptr && !stream->on_host();
  setting.num_ranks = num_ranks;
  setting.is_elastic = is_elastic;
  setting.tries_bucket_sizes = bucket_bytes == 0;
  setting.average_buffers_every = average_buffers_every;
  return setting;
}

Pipeline::Pipeline(Communicator& communicator, Config config, std::vector<ParameterInfo> parameters,
                   ParameterHost* host)
    : config_(checked(std::move(config))),
      parameters_(checked(std::move(parameters), config_)),
      host_(host),
      communicator_(communicator),
      stream_(config_.stream != nullptr ? *config_.stream : inline_stream_),
      pool_(config_.num_threads),
      policy_(config_.gradients, stream_, std::ssize(parameters_), 0),
      recipe_(config_.gradients.recipe, stream_, parameters_),
      planner_(config_.bucket_bytes, config_.logger),
      places_(parameters_.size()),
      scope_(stream_) {
  prepare_device(stream_);
}

Pipeline::Pipeline(Communicator& communicator, Config config, std::vector<ParameterInfo> parameters,
                   ParameterHost& host)
    : Pipeline(communicator, std::move(config), std::move(parameters), &host) {
  if (config_.begins_detached) stop_exchanging();
  warn_of_algorithm();
}

Pipeline::Pipeline(Communicator& communicator, Config config, std::vector<ParameterInfo> parameters,
                   const BucketPlan& plan, std::vector<ParameterMemory> memory)
    : Pipeline(communicator, std::move(config), std::move(parameters), nullptr) {
  planner_.set_plan(plan);
  build(config_.begins_detached, std::move(memory));
}

Pipeline::~Pipeline() = default;

void Pipeline::make_lanes() {
  // In rounds to come some ranks may exchange while others do not.
  communicator_.connect();
  // For the sum of flags of GradientPolicy::decide_step().
  in_world_.reserved = communicator_.reserve(1, DType::kFloat64, 2);
  in_world_.lanes =
      std::make_unique<PeerLanes>(LaneSetup{.stream = stream_,
                                            .communicator = communicator_,
                                            .topology = config_.exchange.topology,
                                            .codec = config_.exchange.codec,
                                            .shares_memory = config_.exchange.shares_memory,
                                            .waits_whole = communicator_.is_elastic(),
                                            .metrics = metrics_,
                                            .simd = config_.simd,
                                            .timeline = config_.timeline});
}

template <class Part>
void Pipeline::run_or_detach(const Part& part) {
  if (!detached_) {
    try {
      return part(*in_world_.algorithm);
    } catch (const PeerLost&) {
      if (!communicator_.is_elastic()) throw;
      stop_exchanging();
    }
  }
  part(*detached_);
}

void Pipeline::build(bool begins_detached, std::vector<ParameterMemory> memory) {
  AlgorithmSetting setting =
      config_.setting(config_.exchange, communicator_.size(), communicator_.is_elastic());
  // The topology may be that of a world that is gone; resume() brings another one.
  if (begins_detached) setting.num_ranks = 0;
  config_.exchange.algorithm.check(setting);
  if (begins_detached) {
    stop_exchanging();
  } else {
    make_lanes();
  }
  make_buckets(std::move(memory));
  step_.has_started = true;
}

void Pipeline::make_buckets(std::vector<ParameterMemory> memory) {
  const BucketPlan& plan = planner_.plan();
  policy_.set_num_buckets(std::ssize(plan.buckets));
  if (memory.size() != plan.buckets.size()) {
    throw std::logic_error("Pipeline: memory for every bucket is needed");
  }
  std::int64_t first_entry = 0;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const auto& entries = plan.buckets[b].entries;
    const Block squares = part_of(policy_.squares(), first_entry, std::ssize(entries));
    buckets_.emplace_back(static_cast<std::int64_t>(b), plan.buckets[b], parameters_,
                          Bucket::Memory{std::move(memory[b]), squares}, *config_.optimizer,
                          stream_);
    for (std::size_t e = 0; e < entries.size(); ++e) {
      const auto parameter = static_cast<std::size_t>(entries[e].parameter);
      const auto entry = static_cast<std::int64_t>(e);
      Place& place = places_[parameter];
      place.bucket = b;
      place.entry = entry;
      if (place.settings) buckets_.back().set_settings(entry, *place.settings);
    }
    first_entry += std::ssize(entries);
  }
  groups_.all = groups_of(buckets_, stream_, config_.group_bytes);
  groups_.squares_scratch =
      stream_.allocate(squares_scratch_numel(stream_, groups_.all), DType::kFloat64);
  if (!detached_) make_algorithm();
}

void Pipeline::make_algorithm() {
  in_world_.algorithm = config_.exchange.algorithm.make({.buckets = buckets_,
                                                         .lanes = *in_world_.lanes,
                                                         .progress = progress_,
                                                         .schedule = *config_.schedule,
                                                         .stream = stream_,
                                                         .codec = config_.exchange.codec,
                                                         .simd = config_.simd,
                                                         .pool = &pool_});
  in_world_.lanes->share_memory();
  recipe_.set_way(why_no_recipe(config_.exchange.algorithm,
                                config_.setting(config_.exchange, communicator_.size(), false),
                                config_.gradients, config_.shards != nullptr),
                  config_.exchange.algorithm.name(), config_.logger);
  // Allocating may free what an allocator has kept, which waits for the device, and a device may
  // wait for NCCL's operation of a peer. So no rank begins to wait for messages before all have
  // their memory.
  if (!stream_.on_host()) communicator_.barrier();
}

void Pipeline::drop_algorithm() {
  in_world_.algorithm.reset();
  in_world_.lanes->drop_lanes();
}

PipelineState Pipeline::state() const {
  if (!step_.has_started) return PipelineState::kTracing;
  if (!in_world_.algorithm && !detached_) return PipelineState::kBroken;
  if (uncommitted_.is_pending()) return PipelineState::kUncommitted;
  const bool inside = std::ranges::any_of(buckets_, &Bucket::has_gradients);
  return inside ? PipelineState::kInStep : PipelineState::kReady;
}

void Pipeline::gradient_ready(std::int64_t parameter, ConstBlock gradient) {
  const ScopedTimer timer(metrics_.pipeline_s);
  close_step();
  check_committed();
  Place& place = places_.at(static_cast<std::size_t>(parameter));
  place.is_offered = true;
  Bucket& bucket = buckets_[place.bucket];
  bucket.offer(place.entry, gradient);
  if (!inspect(bucket, place.entry, gradient)) {
    refuse(bucket, place.entry, progress_.num_steps + 1, true);
  }
  advance();
}

void Pipeline::set_settings(std::int64_t parameter, ParameterSettings settings) {
  Place& place = places_.at(static_cast<std::size_t>(parameter));
  buckets_.at(place.bucket).set_settings(place.entry, settings);
  place.settings = std::move(settings);
}

void Pipeline::set_num_updates(std::int64_t parameter, std::int64_t num_updates) {
  const Place& place = places_.at(static_cast<std::size_t>(parameter));
  buckets_.at(place.bucket).set_num_updates(place.entry, num_updates);
}

void Pipeline::advance() {
  while (step_.num_ready < buckets_.size() && buckets_[step_.num_ready].is_ready()) {
    Bucket& bucket = buckets_[step_.num_ready++];
    {
      const UpdateTimer timer(metrics_);
      run_or_detach([&](Algorithm& algorithm) { algorithm.gradients_ready(bucket); });
    }
    if (defers()) continue;
    const std::span<Bucket> group =
        *std::ranges::lower_bound(groups_.all, bucket.index(), {},
                                  [](std::span<Bucket> each) { return each.back().index(); });
    if (group.back().index() != bucket.index()) continue;
    finish_gradients(group);
    update(group);
  }
}

bool Pipeline::inspect(Bucket& bucket, std::int64_t entry, const ConstBlock& gradient) {
  if (!stream_.immediate()) return true;
  const ScopedTimer timer(metrics_.update_s);
  const Block squares = part_of(bucket.squares(), entry, 1);
  enqueue_squares(
      stream_, {.gradients = {gradient}, .squares = squares, .simd = config_.simd, .pool = &pool_});
  return policy_.skips() || !std::isnan(squares.as<double>()[0]);
}

void Pipeline::finish_gradients(std::span<Bucket> group) {
  {
    const UpdateTimer timer(metrics_);
    for (Bucket& bucket : group) {
      run_or_detach([&](Algorithm& algorithm) { algorithm.final_gradients(bucket); });
    }
    if (!stream_.immediate()) {
      take_squares(stream_, group, groups_.squares_scratch.block(), config_.simd, &pool_);
    }
  }
  for (Bucket& bucket : group) {
    if (!bucket.has_replaced_gradients()) continue;
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      // A sum over ranks has its own norm, and may overflow where no rank's part did.
      if (!inspect(bucket, entry, bucket.gradient(entry))) {
        refuse(bucket, entry, progress_.num_steps + 1, false);
      }
    }
  }
}

void Pipeline::update(std::span<Bucket> group) {
  mix_and_update(group);
  for (Bucket& bucket : group) {
    if (config_.external_optimizer) apply_external_optimizer({&bucket, 1});
    send(bucket);
  }
}

void Pipeline::update_all() {
  if (!config_.rule_sees_whole_step) {
    for (const std::span<Bucket> group : groups_.all) update(group);
    return;
  }
  for (const std::span<Bucket> group : groups_.all) mix_and_update(group);
  apply_external_optimizer(buckets_);
  for (Bucket& bucket : buckets_) send(bucket);
}

void Pipeline::mix_and_update(std::span<Bucket> group) {
  const UpdateTimer timer(metrics_);
  std::vector<ConstBlock> squares;
  for (const Bucket& bucket : group) {
    squares.push_back(bucket.squares());
    if (!detached_) recipe_.take_gradients(progress_.num_steps, bucket);
  }
  const GradientDecision* decision =
      policy_.decide(group.front().index(), std::move(squares), mean_factor());
  std::vector<BlockUpdate> updates;
  for (Bucket& bucket : group) {
    // A PeerLost comes before the sweep, which does not wait.
    run_or_detach([&](Algorithm& algorithm) {
      updates.push_back(bucket.begin_update(with_intake(
          algorithm, bucket,
          {.lr = uncommitted_.lr().value_or(config_.schedule->lr(progress_.num_updates())),
           .step_scale = recipe_.rate_factor(bucket.optimizer()),
           .decision = decision,
           .simd = config_.simd,
           .pool = &pool_,
           .orthogonalize = config_.orthogonalize ? &config_.orthogonalize : nullptr},
          [&] { return policy_.decide_unscaled(bucket.index(), bucket.squares()); })));
    });
    ++decision;
  }
  const TimelineScope scope(config_.timeline.get(),
                            {.what = "update", .bucket = group.front().index()});
  enqueue_updates(stream_, group.front().optimizer(), std::move(updates));
}

void Pipeline::apply_external_optimizer(std::span<Bucket> buckets) {
  const UpdateTimer timer(metrics_);
  const TimelineScope scope(config_.timeline.get(),
                            {.what = "update", .bucket = buckets.front().index()});
  std::vector<ExternalStep> steps;
  for (Bucket& bucket : buckets) steps.push_back(bucket.external_step());
  config_.external_optimizer(steps);
  for (Bucket& bucket : buckets) bucket.finish_external_step();
}

void Pipeline::send(Bucket& bucket) {
  if (host_ != nullptr) host_->after_update(bucket.spec());
  run_or_detach([&](Algorithm& algorithm) { algorithm.after_update(bucket); });
}

void Pipeline::update_deferred() {
  if (updates_in_turn()) {
    for (const std::span<Bucket> group : groups_.all) {
      finish_gradients(group);
      update(group);
    }
    return;
  }
  for (const std::span<Bucket> group : groups_.all) finish_gradients(group);
  if (completes_norms()) {
    const UpdateTimer timer(metrics_);
    algorithm().shared_states()->complete_norms();
  }
  if (policy_.defers()) decide_step();
  if (commit()) update_all();
}

bool Pipeline::completes_norms() const {
  return policy_.clips() && algorithm().shared_states() != nullptr;
}

bool Pipeline::updates_in_turn() const {
  return !policy_.defers() && !completes_norms() && !commits() && !config_.rule_sees_whole_step;
}

void Pipeline::decide_step() {
  // Asynchronous ranks leave out bad steps on their own.
  const bool decides_together = config_.exchange.algorithm.entry().steps == RankSteps::kTogether;
  if (config_.shards != nullptr && policy_.clips()) policy_.add_norms_of(*config_.shards);
  Communicator* const together = config_.everyone != nullptr ? config_.everyone : &communicator_;
  try {
    policy_.decide_step(decides_together && !detached_ ? together : nullptr);
  } catch (const PeerLost&) {
    stop_exchanging();
    policy_.decide_step(nullptr);
  }
}

void Pipeline::finish_step() {
  {
    const ScopedTimer timer(metrics_.pipeline_s);
    forget_offered();
    close_step();
    check_committed();
    step_.lr = config_.schedule->lr(progress_.num_updates());
    for (Bucket& bucket : buckets_) bucket.close();
    advance();
    uncommitted_.count_step();
    end_step();
  }
  if (const auto size = planner_.next_size(communicator_)) recut(*size);
}

void Pipeline::end_step() {
  if (defers()) update_deferred();
  if (!has_uncommitted_step()) count_step();
}

void Pipeline::count_step() {
  run_or_detach([](Algorithm& algorithm) { algorithm.end_step(); });
  follow_recipe();
  policy_.end_step(mean_factor());
  for (Bucket& bucket : buckets_) bucket.begin_step();
  step_.num_ready = 0;
  ++progress_.num_steps;
  step_.has_sent = true;
  step_.is_open = true;
  // Algorithms that mix at the end want to know whether the step counts.
  if (stream_.immediate() || (algorithm().mixes_at_end() && policy_.skips())) close_step();
  mix_at_end();
}

void Pipeline::mix_at_end() {
  if (!algorithm().mixes_at_end()) return;
  const UpdateTimer timer(metrics_);
  for (Bucket& bucket : buckets_) {
    run_or_detach([&](Algorithm& algorithm) {
      gossamer::mix_at_end(algorithm, bucket, stream_, config_.simd);
    });
  }
}

void Pipeline::follow_recipe() {
  run_or_detach([this](const Algorithm& /*algorithm*/) {
    // After a PeerLost the recipe has dropped its sample, and this call does nothing.
    recipe_.end_step(progress_.num_steps, communicator_);
  });
  policy_.set_norm_factor(recipe_.norm_factor());
}

void Pipeline::close_step() {
  if (!step_.has_started) return;
  if (!in_world_.algorithm && !detached_)
    throw std::logic_error("Pipeline: an earlier replan() or switch_to() has failed");
  if (step_.failure) std::rethrow_exception(step_.failure);
  if (!std::exchange(step_.is_open, false)) return;
  const StepReport report = policy_.take_report();
  step_.gradient_norm = report.norm;
  if (report.skipped) {
    ++progress_.num_skipped;
    for (Bucket& bucket : buckets_) bucket.rollback_update();
  }
  if (policy_.skips() || report.nonfinite < 0 || !step_.nonfinite.empty()) return;
  std::int64_t entry = report.nonfinite;
  for (const Bucket& bucket : buckets_) {
    if (entry < bucket.num_entries()) {
      if (policy_.keeps()) {
        // The owner may have written the sum over its own gradient.
        step_.nonfinite = concat("step ", progress_.num_steps, ": the ranks' gradients of ",
                                 bucket.name(entry), " are not finite");
        return;
      }
      // The sweep may have used a sum over ranks.
      const ConstBlock own = bucket.last_own_gradient(entry);
      try {
        refuse(bucket, entry, progress_.num_steps,
               own.data == nullptr || holds_nonfinite(stream_, own));
      } catch (const NonFiniteError&) {
        step_.failure = std::current_exception();
        throw;
      }
    }
    entry -= bucket.num_entries();
  }
  throw std::logic_error("Pipeline: a squared norm of no gradient");
}

std::string Pipeline::take_nonfinite() {
  close_step();
  return std::exchange(step_.nonfinite, {});
}

void Pipeline::refuse(const Bucket& bucket, std::int64_t entry, std::int64_t step, bool is_own) {
  const std::string& name = bucket.name(entry);
  const std::string what = is_own ? concat("rank ", own_world_rank(communicator_), ", step ", step,
                                           ": the gradient of ", name, " is not finite")
                                  : concat("step ", step, ": the sum of the ranks' gradients of ",
                                           name, " is not finite, though this rank's own is");
  if (policy_.keeps()) {
    if (step_.nonfinite.empty()) step_.nonfinite = what;
    return;
  }
  throw NonFiniteError(concat(what,
                              "; try a smaller learning rate or clipping (train.grad_clip), or "
                              "skip such steps with train.nonfinite: skip"));
}

void Pipeline::drain() {
  if (!step_.has_started) return;
  if (detached_) {
    throw PeerLost({.rank = own_world_rank(communicator_), .label = {.what = "drain"}},
                   "ranks are lost, and the others have not gone on without them");
  }
  // wait_s counts only waits that hold up a step; this one does not.
  const double waited = metrics_.wait_s;
  try {
    in_world_.lanes->drain();
    metrics_.wait_s = waited;
    stream_.synchronize();
    communicator_.check();
  } catch (const PeerLost&) {
    stop_exchanging();
    throw;
  }
  close_step();
}

void Pipeline::forget_arrived() {
  if (detached_ || !step_.has_started) return;
  in_world_.lanes->forget();
  in_world_.algorithm->forget();
  step_.has_sent = false;
}

const PipelineMetrics& Pipeline::metrics() {
  close_step();
  return metrics_;
}

const Progress& Pipeline::progress() {
  close_step();
  return progress_;
}

double Pipeline::lr() {
  close_step();
  return config_.schedule->lr(progress_.num_updates());
}

double Pipeline::last_lr() const { return step_.has_started ? step_.lr : config_.schedule->lr(0); }

double Pipeline::gradient_norm() {
  close_step();
  return step_.gradient_norm;
}

double Pipeline::model_weight() const {
  return in_world_.lanes ? in_world_.lanes->model_weight() : 1.0;
}

HostSharing Pipeline::host_sharing() const {
  return in_world_.lanes ? in_world_.lanes->host_sharing() : HostSharing();
}

std::vector<ParameterMemory> Pipeline::memory() const {
  std::vector<ParameterMemory> memory;
  for (const Bucket& bucket : buckets_) memory.push_back(bucket.model_memory());
  return memory;
}

}  // namespace gossamer

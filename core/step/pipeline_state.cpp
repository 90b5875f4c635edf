// What Pipeline does with its state: saving and loading, other buckets, another algorithm.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/bucket/model_average.hpp"
#include "core/exchange/peer_lanes.hpp"
#include "core/state/state_copy.hpp"
#include "core/step/pipeline.hpp"

namespace gossamer {

void Pipeline::visit(StateVisitor& visitor) {
  const double bytes_sent = metrics_.bytes_sent;
  drain();
  visitor.number("run/steps", progress_.num_steps);
  visitor.number("run/skipped_steps", progress_.num_skipped);
  std::int64_t has_sent = step_.has_sent ? 1 : 0;
  visitor.number("run/has_sent", has_sent);
  policy_.visit(visitor);
  recipe_.visit(visitor);
  policy_.set_norm_factor(recipe_.norm_factor());
  // What has arrived belongs to the state before loading, so drop it.
  if (visitor.loads()) forget_arrived();
  visitor.number("run/first_step", progress_.first_step);
  if (visitor.loads()) check_progress();
  double weight = model_weight();
  visitor.number("run/model_weight", weight);
  if (visitor.loads() && progress_.round() > 0) in_world_.lanes->resume(weight);
  SharedStates* const shared = in_world_.algorithm->shared_states();
  for (Bucket& bucket : buckets_) {
    if (shared != nullptr) shared->gather(bucket);
    bucket.visit(visitor);
    if (shared != nullptr) shared->release(bucket);
  }
  in_world_.lanes->visit(visitor, [this](std::int64_t index) {
    const Bucket& bucket = buckets_[static_cast<std::size_t>(index)];
    std::vector<std::string> names;
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      names.push_back(bucket.name(entry));
    }
    return names;
  });
  in_world_.algorithm->visit(visitor);
  if (!visitor.loads()) return;
  step_.has_sent = has_sent != 0;
  if (progress_.round() > 0) repeat_exchanges();
  // They were counted when they were first made.
  metrics_.bytes_sent = bytes_sent;
}

void Pipeline::check_progress() const {
  const std::int64_t steps = progress_.num_steps;
  if (steps >= 0 && steps <= Progress::kMostSteps && progress_.num_skipped >= 0 &&
      progress_.num_skipped <= steps && progress_.first_step >= 0 &&
      progress_.first_step <= steps) {
    return;
  }
  throw CheckpointError(concat("the state has made ", steps, " steps, has left out ",
                               progress_.num_skipped,
                               " of them, and its algorithm has begun after ", progress_.first_step,
                               "; no run can have saved it"));
}

void Pipeline::repeat_exchanges() {
  --progress_.num_steps;
  for (Bucket& bucket : buckets_) in_world_.algorithm->after_update(bucket);
  in_world_.algorithm->end_step();
  ++progress_.num_steps;
  const bool is_mixed_in = in_world_.algorithm->mixes_at_end();
  if (step_.has_sent && !is_mixed_in) return;
  drain();
  // A lane that forgets would change its state (GridLane). An algorithm that has mixed does not ask
  // for what has arrived, and the next round takes its place.
  if (!step_.has_sent) forget_arrived();
}

void Pipeline::visit_row_major(StateVisitor& visitor, std::map<std::string, MemoryLayout> layouts) {
  if (!visitor.loads() && !step_.has_started) {
    throw std::logic_error("visit() before the first step, when there is no state to save");
  }
  planner_.skip_trial();
  std::vector<std::int64_t> order = planner_.visit(visitor, std::ssize(parameters_));
  // A model that has buckets keeps them: the state is saved by parameter.
  if (!step_.has_started) start_in(std::move(order));
  std::int64_t is_row_major = 1;
  visitor.number(kRowMajorName, is_row_major);
  RowMajorVisitor rows(visitor, std::move(layouts));
  visit(rows);
}

void Pipeline::replan(std::int64_t bucket_bytes) {
  planner_.end_trials();
  recut(bucket_bytes);
}

void Pipeline::recut(std::int64_t bucket_bytes) {
  if (communicator_.is_elastic()) throw std::logic_error("replan() where ranks may be lost");
  const BucketPlan next = planner_.cut(parameters_, bucket_bytes);
  if (planner_.is_present(next)) return;
  drain_parameters();
  replan(next, host_->move_parameters(next));
  host_->parameters_have_moved();
}

void Pipeline::replan(const BucketPlan& plan, std::vector<ParameterMemory> memory) {
  check_between_steps("replan");
  if (communicator_.is_elastic())
    throw std::logic_error("Pipeline: replan() where ranks may be lost");
  StateCopy state;
  visit(state);
  // The algorithm refers to the buckets.
  drop_algorithm();
  groups_.all.clear();
  buckets_.clear();
  planner_.set_plan(plan);
  make_buckets(std::move(memory));
  state.load();
  visit(state);
}

void Pipeline::check(const ExchangeOptions& wanted) const {
  wanted.algorithm.check(config_.setting(wanted, communicator_.size(), communicator_.is_elastic()));
}

void Pipeline::switch_to(const AlgorithmSwitch& to) {
  check_between_steps("switch_to");
  drain_parameters();
  close_step();
  // Before the check, so that ranks which ask for different things hear of that.
  agree_on_switch(communicator_, to, progress_.num_steps);
  ExchangeOptions next = to.after(config_.exchange);
  check(next);
  const bool is_other = next.algorithm.text() != config_.exchange.algorithm.text();
  if (!step_.has_started) {
    if (to.averages()) host_->average_parameters(1.0);
    config_.exchange = std::move(next);
  } else {
    change_algorithm(to.averages(), std::move(next));
  }
  if (is_other) warn_of_algorithm();
  // Sizes of buckets are compared under one algorithm.
  if (!planner_.tries_sizes()) return;
  replan(BucketPlanner::first_size());
  planner_.start_trials(config_.exchange, parameters_);
}

void Pipeline::change_algorithm(bool averages, ExchangeOptions next) {
  const double weight = model_weight();
  if (SharedStates* const shared = in_world_.algorithm->shared_states()) {
    for (Bucket& bucket : buckets_) shared->gather(bucket);
  }
  drop_algorithm();
  for (Bucket& bucket : buckets_) bucket.drop_added_states();
  if (averages) average_ranks(weight);
  config_.exchange = std::move(next);
  in_world_.lanes->set_topology(config_.exchange.topology);
  progress_.first_step = progress_.num_steps;
  step_.has_sent = false;
  make_algorithm();
}

void Pipeline::check_between_steps(std::string_view call) const {
  if (state() != PipelineState::kInStep) return;
  throw std::logic_error(concat("Pipeline: ", call, "() inside a step"));
}

void Pipeline::average_ranks(double weight, double state_weight) {
  std::vector<ParameterMemory> states;
  for (const Bucket& bucket : buckets_) {
    for (Buffer& state : bucket.states()) states.push_back({.parameters = std::move(state)});
  }
  // The ranks' own values are not taken back.
  static_cast<void>(ModelAverage(communicator_, stream_, memory(), weight));
  static_cast<void>(ModelAverage(communicator_, stream_, std::move(states), state_weight));
  SharedNumbers numbers;
  visit_numbers(numbers);
  numbers.share(communicator_, state_weight);
  visit_numbers(numbers);
}

void Pipeline::visit_numbers(StateVisitor& visitor) {
  visitor.number("run/skipped_steps", progress_.num_skipped);
  policy_.visit(visitor);
  recipe_.visit(visitor);
  for (Bucket& bucket : buckets_) bucket.visit_updates(visitor);
}

}  // namespace gossamer

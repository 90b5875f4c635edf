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
  // What has arrived belongs to the state before loading, so drop it.
  if (visitor.loads()) forget_arrived();
  visitor.number("run/first_step", progress_.first_step);
  if (visitor.loads()) check_progress();
  double weight = model_weight();
  visitor.number("run/model_weight", weight);
  if (visitor.loads() && progress_.round() > 0) lanes_->resume(weight);
  SharedStates* const shared = algorithm_->shared_states();
  for (Bucket& bucket : buckets_) {
    if (shared != nullptr) shared->gather(bucket);
    bucket.visit(visitor);
    if (shared != nullptr) shared->release(bucket);
  }
  lanes_->visit(visitor, [this](std::int64_t index) {
    const Bucket& bucket = buckets_[static_cast<std::size_t>(index)];
    std::vector<std::string> names;
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      names.push_back(bucket.name(entry));
    }
    return names;
  });
  algorithm_->visit(visitor);
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
  for (Bucket& bucket : buckets_) algorithm_->after_update(bucket);
  algorithm_->end_step();
  ++progress_.num_steps;
  if (step_.has_sent) return;
  drain();
  forget_arrived();
}

void Pipeline::replan(const BucketPlan& plan, std::vector<ParameterMemory> memory) {
  check_between_steps("replan");
  if (communicator_.is_elastic())
    throw std::logic_error("Pipeline: replan() where ranks may be lost");
  StateCopy state;
  visit(state);
  // The algorithm refers to the buckets.
  drop_algorithm();
  buckets_.clear();
  policy_.set_num_buckets(std::ssize(plan.buckets));
  make_buckets(plan, std::move(memory));
  state.load();
  visit(state);
}

void Pipeline::switch_to(const AlgorithmSwitch& to) {
  check_between_steps("switch_to");
  close_step();
  agree_on_switch(communicator_, to, progress_.num_steps);
  ExchangeOptions next = to.after(config_.exchange);
  next.algorithm.check(config_.setting(next, communicator_));
  drain();
  const double weight = model_weight();
  if (SharedStates* const shared = algorithm_->shared_states()) {
    for (Bucket& bucket : buckets_) shared->gather(bucket);
  }
  drop_algorithm();
  for (Bucket& bucket : buckets_) bucket.drop_added_states();
  if (to.averages()) average_ranks(weight);
  config_.exchange = std::move(next);
  lanes_->set_topology(config_.exchange.topology);
  progress_.first_step = progress_.num_steps;
  step_.has_sent = false;
  make_algorithm();
}

void Pipeline::check_between_steps(std::string_view call) const {
  const bool inside = !holds_step() && std::ranges::any_of(buckets_, &Bucket::has_gradients);
  if (inside) throw std::logic_error(concat("Pipeline: ", call, "() inside a step"));
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
  for (Bucket& bucket : buckets_) bucket.visit_updates(visitor);
}

}  // namespace gossamer

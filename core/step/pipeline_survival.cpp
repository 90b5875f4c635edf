// What Pipeline does when ranks are lost.

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "core/bucket/model_average.hpp"
#include "core/exchange/peer_lanes.hpp"
#include "core/step/pipeline.hpp"

namespace gossamer {
namespace {

/// An algorithm that exchanges nothing, and updates when the one before would have, with gradients
/// that the one before may have summed.
class LocalOnly : public Algorithm {
 public:
  LocalOnly(bool updates_at_end, double mean_factor)
      : updates_at_end_(updates_at_end), mean_factor_(mean_factor) {}
  [[nodiscard]] bool updates_at_end() const override { return updates_at_end_; }
  [[nodiscard]] double mean_factor() const override { return mean_factor_; }

 private:
  bool updates_at_end_;
  double mean_factor_;
};

}  // namespace

void Pipeline::stop_exchanging() {
  // Operations that have failed may still read or write on it.
  communicator_.stream()->synchronize();
  recipe_.drop();
  detached_ =
      std::make_unique<LocalOnly>(in_world_.algorithm && in_world_.algorithm->updates_at_end(),
                                  in_world_.algorithm ? mean_factor() : 1.0);
}

double Pipeline::mean_factor() const {
  const double factor = algorithm().mean_factor();
  // A rank that has joined adds nothing to a sum.
  const std::int64_t summed = uncommitted_.num_summed();
  return summed == 0 || factor == 1.0 ? factor : 1.0 / static_cast<double>(summed);
}

bool Pipeline::commits() const {
  return communicator_.is_elastic() &&
         config_.exchange.algorithm.entry().equal_models == EqualModels::kAfterEveryStep;
}

bool Pipeline::commit() {
  if (!commits()) return true;
  uncommitted_.hold_gradients();
  if (detached_) return false;
  try {
    // No rank passes before all have come here, with the sums of all buckets.
    uncommitted_.hold_sums(config_.schedule->lr(progress_.num_updates()));
    communicator_.barrier();
    uncommitted_.release();
    uncommitted_.forget_lr();
    return true;
  } catch (const PeerLost&) {
    stop_exchanging();
    return false;
  }
}

void Pipeline::check_committed() const {
  if (!has_uncommitted_step()) return;
  throw PeerLost({.rank = own_world_rank(communicator_), .label = {.what = "step"}},
                 "ranks are lost, and the last step waits for those that are left");
}

void Pipeline::commit_now() {
  if (uncommitted_.state() == UncommittedStep::State::kGradients) {
    // The others have switched to an algorithm whose ranks update alone, and this one had not.
    detached_ = std::make_unique<LocalOnly>(/*updates_at_end=*/true, /*mean_factor=*/1.0);
    restore_gradients();
    if (!stream_.immediate()) {
      for (const std::span<Bucket> group : groups_.all) {
        take_squares(stream_, group, groups_.squares_scratch.block(), config_.simd, &pool_);
      }
    }
    if (policy_.defers()) policy_.decide_step(nullptr);
  }
  uncommitted_.release();
  update_all();
  uncommitted_.forget_lr();
  count_step();
  // Ranks compare how many updates they have made.
  close_step();
}

void Pipeline::restore_gradients() {
  for (Bucket& bucket : buckets_) {
    bucket.restore_gradients();
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      if (!inspect(bucket, entry, bucket.gradient(entry))) {
        refuse(bucket, entry, progress_.num_steps + 1, true);
      }
    }
  }
}

void Pipeline::catch_up(std::int64_t num_steps) {
  if (has_uncommitted_step() && num_steps > progress_.num_steps + 1) commit_now();
}

std::int64_t Pipeline::end_uncommitted_step(bool joins) {
  const auto [num_steps, num_holders] =
      uncommitted_.agree(communicator_, progress_.num_steps, joins);
  if (has_uncommitted_step() && progress_.num_steps < num_steps) commit_now();
  if (joins) progress_.num_steps = num_steps;
  return num_holders;
}

void Pipeline::remake_step(std::int64_t num_ranks) {
  uncommitted_.begin_again(num_ranks);
  step_.num_ready = 0;
  step_.lr = config_.schedule->lr(progress_.num_updates());
  restore_gradients();
  for (Bucket& bucket : buckets_) bucket.close();
  advance();
  end_step();
  uncommitted_.end_again();
}

void Pipeline::detach() {
  check_between_steps("detach");
  if (!detached_) stop_exchanging();
  // Work of the last step may still use what goes now.
  stream_.synchronize();
  close_step();
  if (uncommitted_.state() == UncommittedStep::State::kSums && in_world_.algorithm) {
    // They lie in the lanes.
    for (Bucket& bucket : buckets_) bucket.keep_replaced_gradients();
    stream_.synchronize();
  }
  // The algorithm has the memory of these.
  for (Bucket& bucket : buckets_) bucket.set_own_gradients({});
  in_world_.algorithm.reset();
  // Their operations own what they still use.
  in_world_ = {};
}

void Pipeline::resume(const Resume& wanted) {
  if (!detached_) throw std::logic_error("Pipeline: resume() without detach()");
  if (host_ != nullptr) {
    std::vector<std::int64_t> order = planner_.agree_on_order(communicator_);
    if (!step_.has_started && !order.empty()) start_in(std::move(order));
    check(wanted.to.after(config_.exchange));
  }
  if (step_.has_started) {
    resume_training(wanted);
  } else {
    resume_tracing(wanted);
  }
}

void Pipeline::resume_tracing(const Resume& wanted) {
  const MeanWeight mean = mean_weight(communicator_, /*counts=*/!wanted.joins);
  agree_on_switch(communicator_, wanted.to, 0);
  if (mean.num_counting < communicator_.size() || wanted.to.averages()) {
    host_->average_parameters(mean.weight);
  }
  config_.exchange = wanted.to.after(config_.exchange);
  detached_.reset();
}

void Pipeline::resume_training(const Resume& wanted) {
  detach();
  const MeanWeight mean = mean_weight(communicator_, /*counts=*/!wanted.joins);
  const std::int64_t num_held = end_uncommitted_step(wanted.joins);
  AlgorithmSwitch to = wanted.to;
  if (mean.num_counting < communicator_.size()) to.average = true;
  agree_on_switch(communicator_, to, progress_.num_steps);
  ExchangeOptions next = to.after(config_.exchange);
  check(next);
  for (Bucket& bucket : buckets_) bucket.drop_added_states();
  if (to.averages()) average_ranks(mean.weight, mean.weight);
  config_.exchange = std::move(next);
  progress_.first_step = progress_.num_steps;
  step_.has_sent = false;
  make_lanes();
  make_algorithm();
  detached_.reset();
  if (num_held > 0) remake_step(num_held);
}

}  // namespace gossamer

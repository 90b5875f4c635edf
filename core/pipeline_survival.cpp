// What Pipeline does when ranks are lost.

#include <memory>
#include <stdexcept>
#include <utility>

#include "base/error.hpp"
#include "core/lanes/peer_lanes.hpp"
#include "core/model_average.hpp"
#include "core/pipeline.hpp"

namespace gossamer {
namespace {

/// An algorithm that exchanges nothing, and updates when the one before would have.
class Alone : public Algorithm {
 public:
  explicit Alone(bool updates_at_end) : updates_at_end_(updates_at_end) {}
  [[nodiscard]] bool updates_at_end() const override { return updates_at_end_; }

 private:
  bool updates_at_end_;
};

}  // namespace

void Pipeline::go_alone() {
  alone_ = std::make_unique<Alone>(algorithm_ && algorithm_->updates_at_end());
}

void Pipeline::detach() {
  check_between_steps("detach");
  if (!alone_) go_alone();
  // Work of the last step may still use what goes now.
  stream_.synchronize();
  close_step();
  algorithm_.reset();
  // Their operations own what they still use.
  lanes_.reset();
  reserved_.reset();
}

void Pipeline::resume(const Resume& wanted) {
  if (!alone_) throw std::logic_error("Pipeline: resume() without detach()");
  detach();
  if (wanted.joins_at) progress_.num_steps = *wanted.joins_at;
  const MeanWeight mean = mean_weight(communicator_, /*counts=*/!wanted.joins_at);
  if (mean.num_counting == 0) {
    throw CommError(
        {.rank = own_world_rank(communicator_), .label = {.what = "resume"}},
        "no rank that is left has the model; continue the run from its last checkpoint");
  }
  AlgorithmSwitch to = wanted.to;
  if (mean.num_counting < communicator_.size()) to.average = true;
  agree_on_switch(communicator_, to, progress_.num_steps);
  ExchangeOptions next = to.after(config_.exchange);
  next.algorithm.check(config_.setting(next, communicator_));
  for (Bucket& bucket : buckets_) bucket.drop_added_states();
  if (to.averages()) average_ranks(mean.weight, mean.weight);
  config_.exchange = std::move(next);
  progress_.first_step = progress_.num_steps;
  has_sent_ = false;
  make_lanes();
  make_algorithm();
  alone_.reset();
}

}  // namespace gossamer

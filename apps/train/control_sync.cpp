#include "apps/train/control_sync.hpp"

#include <algorithm>
#include <utility>

namespace gossamer::apps {
namespace {

// Launchers kill a job some seconds after a signal.
constexpr std::int64_t kMicroseconds = 250'000;

}  // namespace

ControlSync::ControlSync(Communicator& communicator)
    : communicator_(communicator.duplicate("meetings")) {}

std::optional<ControlSync::Status> ControlSync::meet(std::int64_t step, const Status& own) {
  const auto now = Clock::now();
  const auto since = std::chrono::duration_cast<std::chrono::microseconds>(now - last_time_);
  const std::int64_t step_us = since.count() / std::max<std::int64_t>(step - last_step_, 1);
  last_time_ = now;
  last_step_ = step;
  std::optional<Status> status;
  if (numbers_) {
    status = end_sum();
    const std::int64_t mean_us = std::max<std::int64_t>(sum_us_ / communicator_.size(), 1);
    every_ = std::clamp<std::int64_t>(kMicroseconds / mean_us, 1, 2 * every_);
  }
  begin_sum(own, step_us);
  next_ = step + every_;
  return status;
}

std::optional<ControlSync::Status> ControlSync::poll(const Status& own) {
  if (!numbers_) {
    begin_sum(own, 0);
    return std::nullopt;
  }
  if (!request_.done()) return std::nullopt;
  return end_sum();
}

void ControlSync::begin_sum(const Status& own, std::int64_t step_us) {
  numbers_ = std::make_shared<Numbers>();
  numbers_->own = {own.terminate, own.interrupt,      own.preempt,
                   own.written,   own.checkpoint_due, own.checkpoint_failed,
                   own.steps,     own.hang_up,        step_us};
  const auto block = [](std::array<std::int64_t, kNumNumbers>& values) {
    return Block{.data = values.data(), .numel = kNumNumbers, .dtype = DType::kInt64};
  };
  request_ = communicator_.all_reduce_sum(block(numbers_->own), block(numbers_->sum),
                                          {.label = {.what = "meeting"}, .owner = numbers_});
}

ControlSync::Status ControlSync::end_sum() {
  request_.wait();
  const std::array<std::int64_t, kNumNumbers> sum = std::exchange(numbers_, nullptr)->sum;
  sum_us_ = sum[8];
  return {.terminate = sum[0],
          .hang_up = sum[7],
          .interrupt = sum[1],
          .preempt = sum[2],
          .written = sum[3],
          .checkpoint_due = sum[4],
          .checkpoint_failed = sum[5],
          .steps = sum[6]};
}

void ControlSync::leave() {
  if (numbers_) request_.wait();
  numbers_.reset();
  last_time_ = Clock::now();
  every_ = 1;
  next_ = 0;
}

}  // namespace gossamer::apps

#include "core/bucket/bucket_tuner.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace gossamer {
namespace {

double mean_seconds(const std::vector<double>& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
}

}  // namespace

BucketTuner::BucketTuner(Config config)
    : config_(std::move(config)), num_waiting_(config_.num_before + kWarmup) {
  if (config_.sizes.empty()) throw std::logic_error("BucketTuner: there is no size to try");
}

std::int64_t BucketTuner::size() const {
  const std::size_t last = 2 * config_.sizes.size() - 1;
  const std::size_t trial = std::min(trials_.size() - 1, last);
  return config_.sizes[std::min(trial, last - trial)];
}

bool BucketTuner::end_step(double now_s) {
  const double began_s = std::exchange(last_end_s_, now_s);
  const bool skips = std::exchange(skips_, false);
  if (num_waiting_ > 0) {
    --num_waiting_;
    return false;
  }
  if (!skips) trials_.back().push_back(now_s - began_s);
  if (std::ssize(trials_.back()) < config_.num_measured) return false;
  num_waiting_ = kWarmup;
  trials_.emplace_back();
  return true;
}

bool BucketTuner::is_over() const { return trials_.size() > 2 * config_.sizes.size(); }

std::vector<double> BucketTuner::step_s() const {
  std::vector<double> means;
  for (std::size_t i = 0; i < config_.sizes.size(); ++i) {
    const std::vector<double>& way_back = trials_.at(2 * config_.sizes.size() - 1 - i);
    means.push_back((mean_seconds(trials_[i]) + mean_seconds(way_back)) / 2.0);
  }
  return means;
}

}  // namespace gossamer

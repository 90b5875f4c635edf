#include "core/bucket_tuner.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace gossamer {
namespace {

/// The mean without the longest fourth.
double trimmed_mean(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  seconds.resize(seconds.size() - seconds.size() / 4);
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
}

}  // namespace

BucketTuner::BucketTuner(std::vector<std::int64_t> sizes) : sizes_(std::move(sizes)) {
  if (sizes_.empty()) throw std::logic_error("BucketTuner: there is no size to try");
}

std::int64_t BucketTuner::size() const {
  const std::size_t trial = std::min(trials_.size(), 2 * sizes_.size()) - 1;
  return sizes_[std::min(trial, 2 * sizes_.size() - 1 - trial)];
}

bool BucketTuner::end_step(double now_s) {
  const double began_s = std::exchange(last_end_s_, now_s);
  if (++num_steps_ > kWarmup) trials_.back().push_back(now_s - began_s);
  if (num_steps_ < kWarmup + kMeasured) return false;
  num_steps_ = 0;
  trials_.emplace_back();
  return true;
}

bool BucketTuner::is_over() const { return trials_.size() > 2 * sizes_.size(); }

std::vector<double> BucketTuner::step_s() const {
  std::vector<double> means;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    const std::vector<double>& way_back = trials_.at(2 * sizes_.size() - 1 - i);
    means.push_back((trimmed_mean(trials_[i]) + trimmed_mean(way_back)) / 2.0);
  }
  return means;
}

}  // namespace gossamer

#pragma once
// Training samples that note who has had which, and that fail when their rank is to die.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "apps/data/dataset.hpp"
#include "base/error.hpp"

namespace gossamer::apps {

inline constexpr std::int64_t kBatchSize = 10;

/// Who has had which sample.
class Ledger {
 public:
  void add(std::int64_t sample) {
    const std::lock_guard lock(mutex_);
    ++uses_[sample];
  }
  [[nodiscard]] std::map<std::int64_t, int> uses() {
    const std::lock_guard lock(mutex_);
    return uses_;
  }

 private:
  std::mutex mutex_;
  std::map<std::int64_t, int> uses_;  // guarded by mutex_
};

/// The training samples of one rank, whose batches are noted, and fail from one on.
class MortalSamples : public Samples {
 public:
  MortalSamples(std::shared_ptr<const Samples> samples, Ledger& ledger)
      : Samples(samples->kind(), samples->target(), samples->shape(), samples->size()),
        samples_(std::move(samples)),
        ledger_(ledger) {}

  void die_in(std::int64_t batch) { last_ = batch * kBatchSize; }
  /// Called before each sample.
  std::function<void(std::int64_t batch)> at_batch = {};

  [[nodiscard]] std::span<const std::int64_t> labels() const override { return samples_->labels(); }
  [[nodiscard]] float background() const override { return samples_->background(); }
  void copy_array(std::int64_t index, std::span<float> out) const override {
    if (at_batch) at_batch(num_ / kBatchSize);
    if (num_++ == last_) throw DataError("this rank dies");
    ledger_.add(index);
    samples_->copy_array(index, out);
  }

 private:
  std::shared_ptr<const Samples> samples_;
  Ledger& ledger_;
  std::int64_t last_ = -1;
  mutable std::int64_t num_ = 0;
};

}  // namespace gossamer::apps

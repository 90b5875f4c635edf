#pragma once
// Makes the batches of a rank, some of them ahead of time on a thread of its own.
//
// A batch depends on the seed, the rank, its number and the changes of the number of ranks (Dealer)
// alone. So a run that is resumed can begin with any batch. Thread safety: one thread calls take().
// Errors: what make_batch() throws, in take().

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "apps/data/dealer.hpp"
#include "apps/train/batches.hpp"

namespace gossamer::apps {

class BatchLoader {
 public:
  struct Setup {
    std::shared_ptr<const Samples> samples;
    Dealer dealer;
    Augmentation augmentation = {};
    std::uint64_t seed = 0;
    int rank = 0;
    /// The most batches that wait. 0: no thread; take() makes the batch.
    std::int64_t prefetch = 0;
  };

  explicit BatchLoader(Setup setup);
  /// Waits for the batch that is being made.
  ~BatchLoader() = default;
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  [[nodiscard]] const Dealer& dealer() const { return setup_.dealer; }
  /// Samples of a batch.
  [[nodiscard]] std::int64_t batch_size() const { return setup_.dealer.batch_size(); }
  [[nodiscard]] std::int64_t batches_per_epoch() const { return setup_.dealer.batches_per_epoch(); }
  /// Returns batch `number`. The first call may begin anywhere; each further call must ask for the
  /// number that follows, or throws std::logic_error.
  Batch take(std::int64_t number);

 private:
  struct Made {
    Batch batch;
    std::exception_ptr error;
  };

  Batch make(std::int64_t number);
  void work(const std::stop_token& stop, std::int64_t first);

  Setup setup_;
  /// The number of the next batch to take; -1 before the first.
  std::int64_t next_ = -1;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Made> waiting_;  // guarded by mutex_
  /// The last member, so that it ends before the members above.
  std::jthread thread_;
};

}  // namespace gossamer::apps

#include "apps/train/batch_loader.hpp"

#include <stdexcept>
#include <utility>

#include "base/thread.hpp"

namespace gossamer::apps {
namespace {

// A stream of the run's seed that nothing else uses; Dealer has others.
constexpr std::uint64_t kAugmentStream = std::uint64_t{4} << 60U;

}  // namespace

BatchLoader::BatchLoader(Setup setup) : setup_(std::move(setup)) {}

Batch BatchLoader::make(std::int64_t number) {
  Batch batch = make_batch(*setup_.samples, setup_.dealer.batch(setup_.rank, number));
  if (setup_.augmentation.enabled()) {
    Random random(setup_.seed, kAugmentStream | static_cast<std::uint64_t>(setup_.rank) << 40U |
                                   static_cast<std::uint64_t>(number));
    augment(batch.inputs, setup_.augmentation, setup_.samples->background(), random);
  }
  return batch;
}

void BatchLoader::work(const std::stop_token& stop, std::int64_t first) {
  for (std::int64_t number = first; !stop.stop_requested(); ++number) {
    Made made;
    try {
      made.batch = make(number);
    } catch (...) {
      made.error = std::current_exception();
    }
    std::unique_lock lock(mutex_);
    const bool room =
        changed_.wait(lock, stop, [this] { return std::ssize(waiting_) < setup_.prefetch; });
    if (!room) return;
    waiting_.push_back(std::move(made));
    changed_.notify_all();
  }
}

Batch BatchLoader::take(std::int64_t number) {
  if (next_ >= 0 && number != next_) {
    throw std::logic_error("BatchLoader::take: batches must be taken one after the other");
  }
  next_ = number + 1;
  if (setup_.prefetch == 0) return make(number);
  if (!thread_.joinable()) {
    thread_ = start_thread<std::jthread>(
        [this, number](const std::stop_token& stop) { work(stop, number); });
  }
  Made made;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !waiting_.empty(); });
    made = std::move(waiting_.front());
    waiting_.pop_front();
  }
  changed_.notify_all();
  if (made.error) std::rethrow_exception(made.error);
  return std::move(made.batch);
}

}  // namespace gossamer::apps

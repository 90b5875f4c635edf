// Asynchronous gossip: push-sum by messages (async_exchange.hpp). A rank never waits for a rank
// that is slow, only for one that it has not heard from for max_staleness of its own steps. So the
// fast ranks make more steps than the slow ones.
//
//   z' = (s / s') z + sum of (m_j / s') z_j - u / s',   s' = s + sum of m_j
//
// where (z_j, m_j) are the messages that have come since the last step (Assran et al., ICML 2019;
// Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent", ICML 2018, has
// the idea without weights). A message holds the whole model and leaves at the end of a step. Since
// no rank waits for it, this costs no time.
//
// Fast ranks pull the models towards their own data. If rank j makes r_j steps in a unit of time,
// the models go to the minimum of the sum over j of r_j f_j. `rate_correction: true` multiplies a
// rank's updates by the mean number of steps that the ranks have made since its last update, which
// the messages tell. Then every rank's updates weigh the same in the long run, and a slow rank
// makes large updates.
//
// When the exchange closes, all messages are mixed into the models, so nothing is under way
// afterwards, and there is nothing to forget. The saved state of a rank is its mass (run/mass), its
// share of all steps (run/share_of_steps), and the steps that its updates stand for
// (run/steps_applied).

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/algorithms/algorithm.hpp"
#include "core/algorithms/algorithm_options.hpp"
#include "core/bucket/per_bucket.hpp"
#include "core/exchange/async_exchange.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

struct AsyncOptions {
  /// Null: a rank never waits.
  std::optional<std::int64_t> max_staleness;
  bool corrects_rates = false;
};

class AsyncGossip : public Algorithm {
 public:
  AsyncGossip(const AsyncOptions& options, const AlgorithmSetup& setup)
      : options_(options), setup_(setup) {
    std::int64_t bytes = 0;
    for (const Bucket& bucket : setup.buckets) {
      offsets_.add(bytes);
      const std::int64_t size = bucket.parameters().block().bytes();
      bytes += (size + Buffer::kAlignment - 1) / Buffer::kAlignment * Buffer::kAlignment;
    }
    async_exchange_ = &setup.lanes.make_async_exchange(
        {.body_bytes = bytes,
         .max_age = options.max_staleness,
         .write = [this](const Block& body) { write(body); },
         .mix = [this](const AsyncExchange::Taken& taken) { mix(taken); }});
  }

  Intake before_update(Bucket& bucket) override {
    if (!std::exchange(is_in_step_, true)) {
      taken_ = async_exchange_->take(setup_.progress.round());
      if (options_.corrects_rates) taken_.update_scale *= next_scale();
    }
    return {.keep = taken_.keep,
            .inboxes = inboxes_of(bucket, taken_),
            .update_scale = taken_.update_scale};
  }

  void end_step() override {
    // The call that repeats a step after loading: the closed asynchronous exchange has left nothing
    // to repeat.
    if (!std::exchange(is_in_step_, false)) return;
    async_exchange_->release();
    async_exchange_->send(setup_.progress.round());
  }

  void visit(StateVisitor& visitor) override {
    visitor.number("run/steps_applied", steps_applied_);
  }

 private:
  /// Enqueues the copy of all parameters into a message.
  void write(const Block& body) {
    for (Bucket& bucket : setup_.buckets) {
      const Block parameters = bucket.parameters().block();
      setup_.stream.copy(place_of(bucket, body), parameters);
    }
  }

  /// Mixes messages into the models, outside of steps.
  void mix(const AsyncExchange::Taken& taken) {
    for (Bucket& bucket : setup_.buckets) {
      enqueue_mix(setup_.stream, bucket.parameters().block(), taken.keep, inboxes_of(bucket, taken),
                  {}, setup_.simd);
      bucket.write_rounded();
    }
  }

  /// The bucket's parameters in a message.
  template <class AnyBlock>
  AnyBlock place_of(Bucket& bucket, const AnyBlock& body) {
    const Block parameters = bucket.parameters().block();
    AnyBlock place = part_of(body, offsets_[bucket], parameters.bytes());
    place.numel = parameters.numel;
    place.dtype = parameters.dtype;
    return place;
  }

  std::vector<Inbox> inboxes_of(Bucket& bucket, const AsyncExchange::Taken& taken) {
    std::vector<Inbox> inboxes;
    for (const AsyncExchange::Message& message : taken.messages) {
      inboxes.push_back({place_of(bucket, message.body), message.weight});
    }
    return inboxes;
  }

  /// The mean number of steps of all ranks since this rank's last update, as far as messages have
  /// told; at most kLargestScale. The next update makes up for the rest.
  double next_scale() {
    const double due = async_exchange_->mean_steps() - steps_applied_;
    const double scale = std::clamp(due, 0.0, kLargestScale);
    steps_applied_ += scale;
    return scale;
  }

  static constexpr double kLargestScale = 16.0;

  AsyncOptions options_;
  AlgorithmSetup setup_;
  /// The places of the buckets in a message, in bytes.
  PerBucket<std::int64_t> offsets_;
  AsyncExchange* async_exchange_ = nullptr;
  AsyncExchange::Taken taken_;
  bool is_in_step_ = false;
  /// The sum of the factors of all updates. The first update has the factor 1.
  double steps_applied_ = -1.0;
};

}  // namespace

AlgorithmFactory read_async_gossip(const Options& options) {
  AsyncOptions read;
  const bool waits = options.read(async_gossip::kMode) == "bounded";
  if (!waits && options.has("max_staleness")) {
    options.fail("max_staleness",
                 "mode: asynchronous has no bound, allowed: only with mode: bounded");
  }
  if (waits) read.max_staleness = options.read(async_gossip::kMaxStaleness);
  read.corrects_rates = options.read(async_gossip::kRateCorrection);
  return {
      [read](const AlgorithmSetup& setup) { return std::make_unique<AsyncGossip>(read, setup); },
      [](const AlgorithmSetting& setting) { return why_no_async_exchange(*setting.topology); }};
}

}  // namespace gossamer

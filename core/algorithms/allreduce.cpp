// The centralised baseline, as PyTorch's DistributedDataParallel does it (Li et al., 2020): a
// bucket's gradients are copied into a flat block when they are there and summed over all ranks
// while the backward pass goes on; updates follow at its end.
//
// At the end of a step the ranks also count who has a gradient for which parameter. One that no
// rank has used stays as it is, one that some have used is updated on all ranks, so that they stay
// equal. The host needs the counts before the gradients are there, so they go by a communicator of
// their own.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/text.hpp"
#include "core/algorithm.hpp"
#include "core/model_average.hpp"
#include "optim/convert.hpp"
#include "topology/rank_round.hpp"

namespace gossamer {
namespace {

/// See Algorithm::culprit().
constexpr int kNobody = -1;
constexpr std::chrono::seconds kSearch{10};

struct Lane {
  Buffer sent;
  Buffer summed;
  Request request;
};

class AllReduce : public Algorithm {
 public:
  explicit AllReduce(AlgorithmContext& context)
      : context_(context),
        counting_(context.communicator.split(0)),
        lanes_(context.buckets.size()) {
    for (std::size_t b = 0; b < lanes_.size(); ++b) {
      const BucketSpec& spec = context.buckets[b].spec();
      lanes_[b].sent = context.stream.allocate(spec.numel, spec.dtype);
      lanes_[b].summed = context.stream.allocate(spec.numel, spec.dtype);
    }
  }

  void on_ready(Bucket& bucket) override {
    pack(bucket, lane_of(bucket));
    packed_.resize(lanes_.size());
    packed_[static_cast<std::size_t>(bucket.index())] = true;
    while (next_launch_ < lanes_.size() && packed_[next_launch_]) {
      launch(context_.buckets[next_launch_]);
      ++next_launch_;
    }
  }

  void on_step_end() override {
    if (next_launch_ != lanes_.size()) {
      throw std::logic_error(concat("bucket ", next_launch_, " was not ready in this step"));
    }
    const std::vector<double> num_users = count_users();
    const bool defers = context_.policy.defers();
    std::size_t first_entry = 0;
    for (Bucket& bucket : context_.buckets) {
      Lane& lane = lane_of(bucket);
      {
        const ScopedTimer timer(context_.metrics.wait_s);
        lane.request.wait_on(context_.stream);
      }
      const auto count = static_cast<std::size_t>(bucket.num_entries());
      unpack(bucket, lane, std::span(num_users).subspan(first_entry, count));
      first_entry += count;
      if (!defers) update(bucket);
    }
    if (defers) {
      context_.update_deferred(&context_.communicator, [this](Bucket& bucket) { update(bucket); });
    }
    next_launch_ = 0;
    packed_.clear();
  }

  [[nodiscard]] double mean_factor() const override { return 1.0 / context_.communicator.size(); }

  [[nodiscard]] int culprit(const Bucket& bucket, std::int64_t entry, int self) override {
    const bool guilty = sent_nonfinite(bucket, entry);
    const auto size = static_cast<std::int64_t>(context_.communicator.size());
    const Buffer mine(size, DType::kFloat64);
    const Buffer all(size, DType::kFloat64);
    const auto flags = all.block().as<double>();
    mine.block().as<double>()[static_cast<std::size_t>(counting_->rank())] = guilty ? 1.0 : 0.0;
    try {
      Request asked = counting_->all_reduce_sum(
          mine.block(), all.block(),
          {.label = {.what = "search"}, .owner = both(mine.owner(), all.owner())});
      // No longer: others may wait for this rank elsewhere.
      const auto end = std::chrono::steady_clock::now() + kSearch;
      while (!asked.done() && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (asked.done()) {
        asked.wait();
        const auto found = std::ranges::find(flags, 1.0);
        const auto place = static_cast<std::size_t>(found - flags.begin());
        if (found != flags.end()) return counting_->world_ranks()[place];
      }
    } catch (const CommError&) {
      if (!guilty) throw;
    }
    return guilty ? self : kNobody;
  }

  // Nothing is in flight between steps.
  void drain() override {}
  void forget_arrived() override {}

 private:
  Lane& lane_of(const Bucket& bucket) { return lanes_[static_cast<std::size_t>(bucket.index())]; }

  static Block flat(const Bucket& bucket, const Buffer& buffer, std::int64_t entry) {
    const auto& entries = bucket.spec().entries;
    const auto place = static_cast<std::size_t>(entry);
    const std::int64_t end =
        place + 1 < entries.size() ? entries[place + 1].offset : bucket.spec().numel;
    return part_of(buffer.block(), entries[place].offset, end - entries[place].offset);
  }

  /// What this rank has added to the sum of the last step was not finite. It is still there:
  /// nothing is packed before the next step begins.
  [[nodiscard]] bool sent_nonfinite(const Bucket& bucket, std::int64_t entry) {
    const ConstBlock mine = flat(bucket, lane_of(bucket).sent, entry);
    Stream& stream = context_.stream;
    const std::array numels{mine.numel};
    const Buffer squares = stream.allocate(1, DType::kFloat64);
    const Buffer scratch = stream.allocate(squares_scratch_numel(numels), DType::kFloat64);
    const Buffer seen = stream.allocate_host(1, DType::kFloat64);
    enqueue_squares(stream, {.gradients = {mine},
                             .squares = squares.block(),
                             .scratch = scratch.block(),
                             .simd = context_.simd,
                             .pool = &context_.pool});
    stream.copy(seen.block(), squares.block());
    stream.synchronize();
    return std::isnan(seen.block().as<double>()[0]);
  }

  /// How many ranks have a gradient for each parameter, bucket by bucket. Collective.
  [[nodiscard]] std::vector<double> count_users() const {
    std::vector<double> mine;
    for (const Bucket& bucket : context_.buckets) {
      for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
        mine.push_back(bucket.gradient(entry).data == nullptr ? 0.0 : 1.0);
      }
    }
    const ScopedTimer timer(context_.metrics.wait_s);
    return sum_over_ranks(*counting_, std::move(mine));
  }

  void pack(const Bucket& bucket, Lane& lane) {
    const ScopedTimer timer(context_.metrics.update_s);
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      const ConstBlock gradient = bucket.gradient(entry);
      const Block target = flat(bucket, lane.sent, entry);
      if (gradient.data == nullptr) {
        context_.stream.zero(target);
      } else {
        enqueue_convert(context_.stream, part_of(target, 0, gradient.numel), gradient);
      }
    }
  }

  void launch(const Bucket& bucket) {
    Lane& lane = lane_of(bucket);
    const OpLabel label{"all-reduce", bucket.index(), context_.metrics.num_steps};
    lane.request =
        context_.communicator.all_reduce_sum(lane.sent.block(), lane.summed.block(),
                                             {.label = label,
                                              .owner = both(lane.sent.owner(), lane.summed.owner()),
                                              .ready = context_.stream.record()});
    context_.metrics.bytes_sent += exchange_bytes(
        lane.sent.block().bytes(), static_cast<std::size_t>(context_.communicator.size()));
  }

  void update(Bucket& bucket) { context_.update(bucket, {}, mean_factor()); }

  void unpack(Bucket& bucket, const Lane& lane, std::span<const double> num_users) {
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      const bool used = num_users[static_cast<std::size_t>(entry)] > 0.0;
      const Block sum = flat(bucket, lane.summed, entry);
      bucket.replace_gradient(entry, used ? ConstBlock(sum) : ConstBlock());
      // The sum has a norm of its own, and may overflow where no part did.
      if (used && !context_.inspect(bucket, entry, sum)) {
        AlgorithmContext::refuse({bucket, entry}, context_.metrics.num_steps + 1, kNobody);
      }
    }
  }

  AlgorithmContext& context_;
  std::unique_ptr<Communicator> counting_;
  std::vector<Lane> lanes_;
  std::vector<bool> packed_;
  std::size_t next_launch_ = 0;
};

}  // namespace

std::unique_ptr<Algorithm> make_all_reduce(AlgorithmContext& context) {
  return std::make_unique<AllReduce>(context);
}

}  // namespace gossamer

// The centralised baseline, as PyTorch's DistributedDataParallel does it (Li et al., 2020): a
// bucket's gradients are copied into a flat block when they are there and summed over all ranks
// while the backward pass goes on; updates follow at its end.
//
// Behind the gradients the flat block carries one number per parameter: how many ranks have a
// gradient for it. A parameter that no rank has used stays as it is, one that some have used is
// updated on all ranks, so that they stay equal.

#include <cstring>
#include <stdexcept>
#include <utility>

#include "gossamer/core/base/text.hpp"
#include "gossamer/core/engine/algorithm.hpp"
#include "gossamer/topology/rank_round.hpp"

namespace gossamer {
namespace {

struct Lane {
  Buffer sent;
  Buffer summed;
  Request request;
};

void fill(const Block& block, double value) {
  if (block.dtype == DType::kFloat32) {
    for (float& x : block.as<float>()) x = static_cast<float>(value);
  } else {
    for (double& x : block.as<double>()) x = value;
  }
}

double first_of(const ConstBlock& block) {
  return block.dtype == DType::kFloat32 ? static_cast<double>(block.as<float>()[0])
                                        : block.as<double>()[0];
}

class AllReduce : public Algorithm {
 public:
  explicit AllReduce(AlgorithmContext& context)
      : context_(context), lanes_(context.buckets.size()) {
    for (std::size_t b = 0; b < lanes_.size(); ++b) {
      const Bucket& bucket = context.buckets[b];
      const std::int64_t numel = bucket.spec().numel + bucket.num_entries();
      lanes_[b].sent = Buffer(numel, bucket.spec().dtype);
      lanes_[b].summed = Buffer(numel, bucket.spec().dtype);
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
    const bool defers = context_.policy.defers();
    for (Bucket& bucket : context_.buckets) {
      Lane& lane = lane_of(bucket);
      {
        const ScopedTimer timer(context_.metrics.wait_s);
        lane.request.wait();
      }
      unpack(bucket, lane);
      if (!defers) update(bucket);
    }
    if (defers) {
      context_.update_deferred(&context_.communicator, [this](Bucket& bucket) { update(bucket); });
    }
    next_launch_ = 0;
    packed_.clear();
  }

  [[nodiscard]] double mean_factor() const override { return 1.0 / context_.communicator.size(); }

  // Nothing is in flight between steps.
  void drain() override {}
  void forget_arrived() override {}

 private:
  Lane& lane_of(const Bucket& bucket) { return lanes_[static_cast<std::size_t>(bucket.index())]; }

  static Block presence(const Bucket& bucket, const Buffer& buffer, std::int64_t entry) {
    return part_of(buffer.block(), bucket.spec().numel + entry, 1);
  }

  static Block flat(const Bucket& bucket, const Buffer& buffer, std::int64_t entry) {
    const auto& entries = bucket.spec().entries;
    const auto place = static_cast<std::size_t>(entry);
    const std::int64_t end =
        place + 1 < entries.size() ? entries[place + 1].offset : bucket.spec().numel;
    return part_of(buffer.block(), entries[place].offset, end - entries[place].offset);
  }

  void pack(const Bucket& bucket, Lane& lane) {
    const ScopedTimer timer(context_.metrics.update_s);
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      const ConstBlock gradient = bucket.gradient(entry);
      const Block target = flat(bucket, lane.sent, entry);
      fill(presence(bucket, lane.sent, entry), gradient.data == nullptr ? 0.0 : 1.0);
      if (gradient.data == nullptr) {
        fill(target, 0.0);
      } else if (gradient.numel > 0) {
        std::memcpy(target.data, gradient.data, static_cast<std::size_t>(gradient.bytes()));
      }
    }
  }

  void launch(const Bucket& bucket) {
    Lane& lane = lane_of(bucket);
    const OpLabel label{"all-reduce", bucket.index(), context_.metrics.num_steps};
    lane.request =
        context_.communicator.all_reduce_sum(lane.sent.block(), lane.summed.block(),
                                             {label, both(lane.sent.owner(), lane.summed.owner())});
    context_.metrics.bytes_sent += exchange_bytes(
        lane.sent.block().bytes(), static_cast<std::size_t>(context_.communicator.size()));
  }

  void update(Bucket& bucket) { context_.update(bucket, {}, mean_factor()); }

  void unpack(Bucket& bucket, const Lane& lane) {
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      const bool used = first_of(presence(bucket, lane.summed, entry)) > 0.0;
      const Block sum = flat(bucket, lane.summed, entry);
      bucket.replace_gradient(entry, used ? ConstBlock(sum) : ConstBlock());
      // The sum has a norm of its own, and may overflow where no part did.
      if (used) context_.inspect(bucket, entry, sum);
    }
  }

  AlgorithmContext& context_;
  std::vector<Lane> lanes_;
  std::vector<bool> packed_;
  std::size_t next_launch_ = 0;
};

}  // namespace

std::unique_ptr<Algorithm> make_all_reduce(AlgorithmContext& context) {
  return std::make_unique<AllReduce>(context);
}

}  // namespace gossamer

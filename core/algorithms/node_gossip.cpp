// Gossip between nodes. The ranks of a node hold equal parameters, because they average their
// gradients in every step. Rank l of a node exchanges only shard l of each bucket, with rank l of
// the peer nodes:
//
//   x' = W x - u(mean gradient of the node)
//
// There are two forms, with equal results.
//
// - Replicated states: every rank updates all parameters. Rank l mixes shard l. The node gathers
//   the mixed shards while the backward pass goes on.
// - Sharded states (`shard: optimizer`; Rajbhandari et al., "ZeRO: Memory Optimizations Toward
//   Training Trillion Parameter Models", SC 2020, stage 1): rank l has the optimizer's states of
//   shard l alone. It gets the sum of the node's gradients for this shard, mixes and updates the
//   shard, and the node gathers the new shards before the step ends.
//
// In a topology whose nodes are single ranks both are `gossip`. A rank that forgets what has
// arrived gives its node its own shard unmixed, so that the node stays equal.

#include <cstdint>
#include <memory>
#include <string>

#include "core/algorithms/algorithm_options.hpp"
#include "core/algorithms/bucket_lanes.hpp"
#include "core/bucket/packed_gradients.hpp"
#include "core/exchange/shard.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

/// What both forms have: the lanes of a rank's node, and those between the nodes.
class NodeGossip : public Algorithm {
 public:
  explicit NodeGossip(const AlgorithmSetup& setup)
      : setup_(setup),
        nodes_(setup.lanes.split_by_node()),
        shards_(on(nodes_.between), [this](const Bucket& bucket) {
          return LaneSpec{
              .bucket = bucket.index(), .numel = shard(bucket).numel, .dtype = bucket.spec().dtype};
        }) {
    for (const Bucket& bucket : setup.buckets) packed_.add({bucket, setup.stream});
  }

  [[nodiscard]] bool updates_at_end() const override { return true; }
  [[nodiscard]] double mean_factor() const override { return 1.0 / nodes_.inside.num_ranks(); }

 protected:
  [[nodiscard]] AlgorithmSetup on(LaneFactory& lanes) const {
    return {.buckets = setup_.buckets,
            .lanes = lanes,
            .progress = setup_.progress,
            .schedule = setup_.schedule,
            .stream = setup_.stream,
            .simd = setup_.simd,
            .pool = setup_.pool};
  }
  [[nodiscard]] AlgorithmSetup inside() const { return on(nodes_.inside); }
  [[nodiscard]] Shard shard(const Bucket& bucket) const {
    return shard_of(bucket.spec().numel, bucket.spec().dtype, nodes_.place,
                    nodes_.inside.num_ranks(), bucket.shard_borders(), bucket.index());
  }
  [[nodiscard]] bool has_peers() const { return nodes_.between.num_ranks() > 1; }
  /// Sends this rank's shard of the parameters to other nodes.
  void start_shard(const Bucket& bucket) {
    if (!has_peers()) return;
    const Buffer& parameters = bucket.parameters();
    shards_[bucket].start(setup_.progress.round(),
                          {parameters.owner(), part_of(parameters.block(), shard(bucket))});
  }

  AlgorithmSetup setup_;
  NodeLanes nodes_;
  /// Between nodes.
  BucketLanes shards_;
  PerBucket<PackedGradients> packed_;
};

class ReplicatedStates : public NodeGossip {
 public:
  explicit ReplicatedStates(const AlgorithmSetup& setup)
      : NodeGossip(setup),
        sums_(inside(),
              {.members = LaneMembers::kAll, .result = LaneResult::kSum, .content = "gradients"},
              PackedGradients::num_flags),
        gathers_(inside(), {.members = LaneMembers::kAll,
                            .result = LaneResult::kGather,
                            .content = "mixed parameters"}) {
    for (const Bucket& bucket : setup.buckets) {
      mixed_.add(setup.stream.allocate(bucket.spec().numel, bucket.spec().dtype));
      scales_.add(1.0);
    }
  }

  void gradients_ready(Bucket& bucket) override {
    if (has_started_) gather_mixed(bucket);
    packed_[bucket].pack(bucket);
    sums_[bucket].start(setup_.progress.round(), packed_[bucket].buffer());
  }
  void final_gradients(Bucket& bucket) override {
    sums_[bucket].wait();
    const Intake sum = sums_[bucket].take();
    packed_[bucket].unpack(bucket, sum.inboxes.empty() ? ConstBlock() : sum.inboxes.front().block);
  }
  Intake before_update(Bucket& bucket) override {
    gathers_[bucket].wait();
    Intake intake = gathers_[bucket].take();
    intake.update_scale = scales_[bucket];
    return intake;
  }
  void after_update(Bucket& bucket) override { start_shard(bucket); }
  void end_step() override { has_started_ = has_peers(); }

 private:
  void gather_mixed(const Bucket& bucket) {
    shards_[bucket].wait();
    const Intake intake = shards_[bucket].take();
    scales_[bucket] = intake.update_scale;
    const Block mixed = part_of(mixed_[bucket].block(), shard(bucket));
    setup_.stream.copy(mixed, part_of(bucket.parameters().block(), shard(bucket)));
    enqueue_mix(setup_.stream, mixed, intake.keep, intake.inboxes, intake.exchange, setup_.simd);
    gathers_[bucket].start(setup_.progress.round(), mixed_[bucket]);
  }

  BucketLanes sums_;
  BucketLanes gathers_;
  PerBucket<Buffer> mixed_;
  PerBucket<double> scales_;
  /// Equal on all ranks.
  bool has_started_ = false;
};

class ShardedStates : public NodeGossip, public SharedStates {
 public:
  explicit ShardedStates(const AlgorithmSetup& setup)
      : NodeGossip(setup),
        sums_(inside(), {.members = LaneMembers::kAll,
                         .result = LaneResult::kShardSum,
                         .content = "gradients"}),
        flags_(inside(),
               [](const Bucket& bucket) {
                 return LaneSpec{.members = LaneMembers::kAll,
                                 .result = LaneResult::kSum,
                                 .bucket = bucket.index(),
                                 .numel = PackedGradients::num_flags(bucket),
                                 .dtype = bucket.spec().dtype,
                                 .content = "flags"};
               }),
        gathers_(inside(), {.members = LaneMembers::kAll, .result = LaneResult::kGather}) {
    std::int64_t num_entries = 0;
    for (Bucket& bucket : setup.buckets) {
      bucket.keep_shard(shard(bucket));
      num_entries += bucket.num_entries();
    }
    norms_ = setup.stream.allocate(num_entries, DType::kFloat64);
    norm_sum_ = &nodes_.inside.make_lane({.members = LaneMembers::kAll,
                                          .result = LaneResult::kSum,
                                          .numel = num_entries,
                                          .dtype = DType::kFloat64,
                                          .content = "gradient norms"});
  }

  void gradients_ready(Bucket& bucket) override {
    PackedGradients& packed = packed_[bucket];
    packed.pack(bucket);
    sums_[bucket].start(setup_.progress.round(), packed.gradients(bucket));
    flags_[bucket].start(setup_.progress.round(), packed.flags(bucket));
  }
  void final_gradients(Bucket& bucket) override {
    sums_[bucket].wait();
    flags_[bucket].wait();
    const Intake sum = sums_[bucket].take();
    const Intake flags = flags_[bucket].take();
    if (sum.inboxes.empty() || flags.inboxes.empty()) {
      return packed_[bucket].unpack(bucket, ConstBlock());
    }
    packed_[bucket].unpack(bucket, sum.inboxes.front().block, flags.inboxes.front().block);
  }
  void complete_norms() override {
    copy_norms(
        [this](const Block& part, const Block& squares) { setup_.stream.copy(part, squares); });
    norm_sum_->start(setup_.progress.round(), norms_);
    norm_sum_->wait();
    const Intake sum = norm_sum_->take();
    if (sum.inboxes.empty()) return;
    setup_.stream.copy(norms_.block(), sum.inboxes.front().block);
    copy_norms(
        [this](const Block& part, const Block& squares) { setup_.stream.copy(squares, part); });
  }
  Intake before_update(Bucket& bucket) override {
    shards_[bucket].wait();
    return shards_[bucket].take();
  }
  void after_update(Bucket& bucket) override {
    start_shard(bucket);
    gathers_[bucket].start(setup_.progress.round(), bucket.parameters());
  }
  // The next forward pass reads the parameters of all shards.
  void end_step() override {
    for (Bucket& bucket : setup_.buckets) {
      gathers_[bucket].wait();
      bucket.write_rounded();
    }
  }
  [[nodiscard]] SharedStates* shared_states() override { return this; }
  void gather(Bucket& bucket) override {
    bucket.keep_shard({.first = 0, .numel = bucket.spec().numel});
    for (const Buffer& state : bucket.states()) {
      gathers_[bucket].start(setup_.progress.round(), state);
      gathers_[bucket].wait();
    }
  }
  void release(Bucket& bucket) override { bucket.keep_shard(shard(bucket)); }

 private:
  /// Calls copy(part of norms_, squares of a bucket) for all buckets.
  template <class Copy>
  void copy_norms(const Copy& copy) {
    std::int64_t first = 0;
    for (const Bucket& bucket : setup_.buckets) {
      copy(part_of(norms_.block(), first, bucket.num_entries()), bucket.squares());
      first += bucket.num_entries();
    }
  }

  BucketLanes sums_;
  BucketLanes flags_;
  BucketLanes gathers_;
  /// The squared norms of all gradients.
  Buffer norms_;
  Lane* norm_sum_ = nullptr;
};

}  // namespace

AlgorithmFactory read_node_gossip(const Options& options) {
  const bool has_shards = options.read(node_gossip::kShard) == "optimizer";
  const auto make = [has_shards](const AlgorithmSetup& setup) -> std::unique_ptr<Algorithm> {
    if (setup.lanes.node_size() == 1) return AlgorithmChoice("gossip").make(setup);
    if (has_shards) return std::make_unique<ShardedStates>(setup);
    return std::make_unique<ReplicatedStates>(setup);
  };
  if (!has_shards) return make;
  return {make, [](const AlgorithmSetting& setting) -> std::string {
            if (setting.has_external_optimizer) {
              return "algorithm.shard: optimizer shares the optimizer's states, and a rule of "
                     "somebody else's has states that nobody else knows; take shard: none";
            }
            if (setting.stream == nullptr || setting.stream->immediate()) return "";
            return "algorithm.shard: optimizer works on processors only; on GPUs take shard: none";
          }};
}

}  // namespace gossamer

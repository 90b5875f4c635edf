// Gossip between nodes. The ranks of a node hold equal parameters: they average their gradients in
// every step, and rank l of a node exchanges only shard l of each bucket with rank l of the peer
// nodes. It mixes this shard, and the node gathers the mixed shards:
//
//   x' = W x - u(mean gradient of the node)
//
// The gather of a bucket runs while the backward pass goes on. In a topology whose nodes are single
// ranks this is `gossip`.

#include "core/bucket_lanes.hpp"
#include "core/gather_lane.hpp"
#include "core/packed_gradients.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

class NodeGossip : public Algorithm {
 public:
  explicit NodeGossip(const AlgorithmSetup& setup)
      : setup_(setup),
        nodes_(setup.lanes.split_by_node()),
        sums_(on(nodes_.inside), LaneRounds::kSum, "gradients", PackedGradients::num_flags),
        gathers_(on(nodes_.inside), LaneRounds::kGather, "mixed parameters"),
        shards_(on(nodes_.between), [this](const Bucket& bucket) {
          return LaneSpec{
              .bucket = bucket.index(), .numel = shard(bucket).numel, .dtype = bucket.spec().dtype};
        }) {
    for (const Bucket& bucket : setup.buckets) {
      packed_.add({bucket, setup.stream});
      mixed_.add(setup.stream.allocate(bucket.spec().numel, bucket.spec().dtype));
      scales_.add(1.0);
    }
  }

  [[nodiscard]] bool updates_at_end() const override { return true; }
  [[nodiscard]] double mean_factor() const override { return 1.0 / nodes_.inside.num_ranks(); }

  void gradients_ready(Bucket& bucket) override {
    if (has_started_) gather(bucket);
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
  void after_update(Bucket& bucket) override {
    if (nodes_.between.num_ranks() == 1) return;
    const Buffer& parameters = bucket.parameters();
    shards_[bucket].start(setup_.progress.round(),
                          {parameters.owner(), own(bucket, parameters.block())});
  }
  void end_step() override { has_started_ = nodes_.between.num_ranks() > 1; }
  void drain() override {
    shards_.drain();
    sums_.drain();
    gathers_.drain();
  }
  // A rank that has forgotten gives its node its own shard unmixed, so that the node stays equal.
  void forget() override { shards_.forget(); }
  [[nodiscard]] bool is_own_gradient(const Bucket& bucket, std::int64_t entry) override {
    return packed_[bucket].holds_nonfinite(bucket, entry);
  }

 private:
  [[nodiscard]] AlgorithmSetup on(LaneFactory& lanes) const {
    return {.buckets = setup_.buckets,
            .lanes = lanes,
            .progress = setup_.progress,
            .schedule = setup_.schedule,
            .stream = setup_.stream,
            .simd = setup_.simd,
            .pool = setup_.pool};
  }
  [[nodiscard]] Shard shard(const Bucket& bucket) const {
    return shard_of(bucket.spec().numel, bucket.spec().dtype, nodes_.place,
                    nodes_.inside.num_ranks());
  }
  [[nodiscard]] Block own(const Bucket& bucket, const Block& block) const {
    const Shard part = shard(bucket);
    return part_of(block, part.first, part.numel);
  }
  void gather(const Bucket& bucket) {
    shards_[bucket].wait();
    const Intake intake = shards_[bucket].take();
    scales_[bucket] = intake.update_scale;
    const Block mixed = own(bucket, mixed_[bucket].block());
    setup_.stream.copy(mixed, own(bucket, bucket.parameters().block()));
    enqueue_mix(setup_.stream, mixed, intake.keep, {intake.inboxes.begin(), intake.inboxes.end()},
                intake.coding, setup_.simd);
    gathers_[bucket].start(setup_.progress.round(), mixed_[bucket]);
  }

  AlgorithmSetup setup_;
  NodeLanes nodes_;
  BucketLanes sums_;
  BucketLanes gathers_;
  BucketLanes shards_;
  PerBucket<PackedGradients> packed_;
  PerBucket<Buffer> mixed_;
  PerBucket<double> scales_;
  /// Equal on all ranks.
  bool has_started_ = false;
};

}  // namespace

AlgorithmFactory read_node_gossip(const Options& /*options*/) {
  return [](const AlgorithmSetup& setup) -> std::unique_ptr<Algorithm> {
    if (setup.lanes.node_size() == 1) return AlgorithmChoice("gossip").make(setup);
    return std::make_unique<NodeGossip>(setup);
  };
}

}  // namespace gossamer

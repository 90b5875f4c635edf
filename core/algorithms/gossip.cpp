// Decentralised training with overlap (Lian et al., "Can Decentralized Algorithms Outperform
// Centralized Algorithms?", NeurIPS 2017; Wang et al., "From Promise to Practice", ICLR 2025): x' =
// W x - u. The exchange of a bucket starts after the bucket's update and ends before its next
// update. So it has the rest of the backward pass and the whole next forward pass.

#include "core/bucket_lanes.hpp"

namespace gossamer {
namespace {

class Gossip : public Algorithm {
 public:
  explicit Gossip(const AlgorithmSetup& setup)
      : setup_(setup), lanes_(setup, LaneRounds::kTopology) {}

  Intake before_update(Bucket& bucket) override {
    lanes_[bucket].wait();
    return lanes_[bucket].take();
  }
  void after_update(Bucket& bucket) override {
    lanes_[bucket].start(setup_.progress.num_steps, bucket.parameters());
  }
  void drain() override { lanes_.drain(); }
  void forget() override { lanes_.forget(); }
  void visit(StateVisitor& visitor) override { lanes_.visit(visitor, setup_.buckets); }

 private:
  AlgorithmSetup setup_;
  BucketLanes lanes_;
};

}  // namespace

AlgorithmFactory read_gossip(const Options& /*options*/) {
  return [](const AlgorithmSetup& setup) { return std::make_unique<Gossip>(setup); };
}

}  // namespace gossamer

// Gossip whose messages hold few elements (CHOCO-Gossip: Koloskova, Stich and Jaggi, "Decentralized
// Stochastic Optimization and Gossip Algorithms with Compressed Communication", ICML 2019). Every
// rank has a public copy h of its parameters, which its neighbours know as well. A message holds
// the largest elements of the difference between the parameters and this copy (top-k), and both
// ends add them to it. The ranks mix their public copies:
//
//   q_i  = the largest elements of (x_i - h_i)
//   h_i' = h_i + q_i
//   x_i' = x_i + gamma * sum of w_ij (h_j' - h_i') - u
//
// What is left out stays in the difference, and travels later. The mean of all ranks stays exact.
//
// A rank does not store its neighbours' copies, but only d_i = sum of w_ij (h_j - h_i). So the
// neighbours and their weights must be the same in every round.
//
// A message counts at both ends when it has arrived, whatever happens in between. So the lanes do
// not forget messages, and forget() only leaves out the mixing of one step. A loaded run sends the
// last messages again, and saved states hold h and d without them.

#include <algorithm>
#include <utility>

#include "core/algorithms/algorithm_options.hpp"
#include "core/algorithms/bucket_lanes.hpp"
#include "optim/flush_denormals.hpp"
#include "optim/sparse_layout.hpp"

namespace gossamer {
namespace {

struct ChocoOptions {
  double fraction = 0.0;
  double consensus_step = 0.0;
};

class Choco : public Algorithm {
 public:
  Choco(const ChocoOptions& options, const AlgorithmSetup& setup)
      : options_(options), setup_(setup) {
    for (Bucket& bucket : setup.buckets) slots_.add(make_slot(bucket));
    lanes_ = BucketLanes(setup, [this](const Bucket& bucket) {
      return LaneSpec{.result = LaneResult::kApart,
                      .bucket = bucket.index(),
                      .numel = slots_[bucket].layout->num_bytes(),
                      .dtype = DType::kUInt8,
                      .content = "largest elements",
                      .forgets = false};
    });
  }

  Intake before_update(Bucket& bucket) override {
    lanes_[bucket].wait();
    const Intake arrived = lanes_[bucket].take();
    Slot& slot = slots_[bucket];
    const bool mixes = std::exchange(slot.mixes, true);
    if (arrived.inboxes.empty()) return {};
    setup_.stream.run([layout = slot.layout, own = slot.message.block(), copy = slot.copy.block(),
                       difference = slot.difference.block(), heard = arrived.inboxes] {
      const FlushDenormals flush;
      double sum = 0.0;
      for (const Inbox& inbox : heard) {
        layout->add_to(difference, inbox.block, inbox.weight);
        sum += inbox.weight;
      }
      layout->add_to(difference, own, -sum);
      layout->add_to(copy, own, 1.0);
    });
    if (!mixes) return {};
    return {.inboxes = {{slot.difference.block(), options_.consensus_step}}};
  }

  void after_update(Bucket& bucket) override {
    Slot& slot = slots_[bucket];
    slot.mixes = true;
    setup_.stream.run([layout = slot.layout, message = slot.message.block(),
                       x = bucket.parameters().block(), copy = slot.copy.block(),
                       simd = setup_.simd,
                       pool = setup_.pool] { layout->encode(message, x, copy, simd, pool); });
    lanes_[bucket].start(setup_.progress.round(), slot.message);
  }

  void forget() override {
    for (const Bucket& bucket : setup_.buckets) slots_[bucket].mixes = false;
  }

 private:
  struct Slot {
    std::shared_ptr<const SparseLayout> layout;
    /// h and d.
    Buffer copy;
    Buffer difference;
    Buffer message;
    /// False: the next update takes the messages and does not mix.
    bool mixes = true;
  };

  Slot make_slot(Bucket& bucket) {
    auto layout = std::make_shared<SparseLayout>(options_.fraction, bucket.spec().dtype);
    for (const Segment& segment : bucket.segments()) layout->add(segment.offset, segment.numel);
    const std::int64_t bytes = layout->num_bytes();
    return {.layout = std::move(layout),
            .copy = bucket.add_state("public_copy"),
            .difference = bucket.add_state("public_difference"),
            .message = setup_.stream.allocate(bytes, DType::kUInt8)};
  }

  ChocoOptions options_;
  AlgorithmSetup setup_;
  PerBucket<Slot> slots_;
  BucketLanes lanes_;
};

}  // namespace

AlgorithmFactory read_choco(const Options& options) {
  ChocoOptions read;
  read.fraction = options.read(choco::kFraction);
  // Stable in simulations of 8 ranks on rings and complete graphs (docs/guide/codecs.md).
  const double stable = std::min(2.0 * read.fraction, 0.5);
  read.consensus_step = options.read(choco::kConsensusStep, stable);
  return [read](const AlgorithmSetup& setup) { return std::make_unique<Choco>(read, setup); };
}

}  // namespace gossamer

// Gossip in small steps: x' = x + share (W x - x) - u, the consensus step of CHOCO-Gossip
// (Koloskova, Stich and Jaggi, ICML 2019) without its compression. A share of 1 is plain gossip.

#include "test/plugins/damped_gossip_options.hpp"

#include "core/algorithms/bucket_lanes.hpp"

namespace gossamer {
namespace {

class DampedGossip : public Algorithm {
 public:
  DampedGossip(double share, const AlgorithmSetup& setup)
      : share_(share), progress_(setup.progress), lanes_(setup) {}

  /// Waits for the messages of the last step, and says what the sweep mixes in.
  Intake before_update(Bucket& bucket) override {
    lanes_[bucket].wait();
    Intake intake = lanes_[bucket].take();
    for (Inbox& inbox : intake.inboxes) inbox.weight *= share_;
    intake.keep = 1.0 - share_ * (1.0 - intake.keep);
    return intake;
  }

  /// Sends the new parameters. The round's number follows from the step's, so all ranks agree on
  /// it.
  void after_update(Bucket& bucket) override {
    lanes_[bucket].start(progress_.round(), bucket.parameters());
  }

 private:
  double share_;
  const Progress& progress_;
  BucketLanes lanes_;
};

}  // namespace

AlgorithmFactory read_damped_gossip(const Options& options) {
  const double share = options.read(damped_gossip::kShare);
  return
      [share](const AlgorithmSetup& setup) { return std::make_unique<DampedGossip>(share, setup); };
}

}  // namespace gossamer

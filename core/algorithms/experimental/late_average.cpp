// Every rank trains on while all ranks average their models (the asynchronous model average of Gan
// et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2021). Every few
// steps a rank takes a snapshot s of its parameters. The mean of all snapshots arrives `late` steps
// later, and the rank adds the difference between this mean and its own snapshot:
//
//   x' = x + (mean s - s) - u
//
// What the rank has learnt in the meantime stays, and so does the mean of all ranks' parameters.
// Bagua averages whenever a time has passed, in a thread of its own. Here steps decide, so a run
// repeats bit for bit. In the first `warmup` steps all ranks use the mean gradient, as `allreduce`
// does.

#include <utility>

#include "core/algorithms/algorithm_options.hpp"
#include "core/algorithms/bucket_lanes.hpp"

namespace gossamer {
namespace {

struct LateAverageOptions {
  std::int64_t every = 8;
  std::int64_t late = 1;
  std::int64_t warmup = 0;
};

class LateAverage : public Algorithm {
 public:
  LateAverage(const LateAverageOptions& options, const AlgorithmSetup& setup)
      : options_(options),
        setup_(setup),
        lanes_(
            setup,
            {.members = LaneMembers::kAll, .result = LaneResult::kMean, .content = "snapshots"}) {
    for (Bucket& bucket : setup.buckets) slots_.add({.snapshot = bucket.add_state("snapshot")});
    if (options.warmup > 0) warmup_ = AlgorithmChoice("allreduce").make(setup);
  }

  [[nodiscard]] bool updates_at_end() const override {
    return warms_up() && warmup_->updates_at_end();
  }
  [[nodiscard]] double mean_factor() const override {
    return warms_up() ? warmup_->mean_factor() : 1.0;
  }
  void gradients_ready(Bucket& bucket) override {
    if (warms_up()) warmup_->gradients_ready(bucket);
  }
  void final_gradients(Bucket& bucket) override {
    if (warms_up()) warmup_->final_gradients(bucket);
  }

  Intake before_update(Bucket& bucket) override {
    Slot& slot = slots_[bucket];
    slot.is_updated = true;
    if (!is_due()) return {};
    lanes_[bucket].wait();
    Intake mean = lanes_[bucket].take();
    if (is_forgotten_ != 0 || mean.inboxes.empty()) return {};
    mean.inboxes.push_back({slot.snapshot.block(), mean.keep - 1.0});
    return {.inboxes = std::move(mean.inboxes)};
  }

  void after_update(Bucket& bucket) override {
    Slot& slot = slots_[bucket];
    if (!std::exchange(slot.is_updated, false)) {
      // After loading: the snapshot is that of the average under way, if there is one.
      if (under_way_since_ >= 0) lanes_[bucket].start(under_way_since_, slot.snapshot);
      return;
    }
    if (!begins_average()) return;
    setup_.stream.copy(slot.snapshot.block(), bucket.parameters().block());
    lanes_[bucket].start(step(), slot.snapshot);
  }

  void end_step() override {
    if (begins_average()) {
      under_way_since_ = step();
      is_forgotten_ = 0;
    } else if (is_due()) {
      under_way_since_ = kNever;
    }
  }

  // This rank goes on taking part in the average, because other ranks may not have forgotten.
  void forget() override { is_forgotten_ = 1; }
  void visit(StateVisitor& visitor) override {
    visitor.number("run/average_since", under_way_since_);
    visitor.number("run/average_forgotten", is_forgotten_);
  }

 private:
  struct Slot {
    Buffer snapshot;
    /// False: the state has been loaded since the last update.
    bool is_updated = false;
  };

  static constexpr std::int64_t kNever = -1;

  [[nodiscard]] std::int64_t step() const { return setup_.progress.round(); }
  [[nodiscard]] bool warms_up() const { return step() < options_.warmup; }
  /// Whether the updates of this step mix in the average under way. A loaded run may have another
  /// `late`, so that the right step may be over.
  [[nodiscard]] bool is_due() const {
    return under_way_since_ >= 0 && step() >= under_way_since_ + options_.late;
  }
  /// Whether an average begins after the updates of this step.
  [[nodiscard]] bool begins_average() const {
    const bool is_free = under_way_since_ < 0 || is_due();
    return is_free && !warms_up() && (step() + 1) % options_.every == 0;
  }

  LateAverageOptions options_;
  AlgorithmSetup setup_;
  BucketLanes lanes_;
  PerBucket<Slot> slots_;
  /// The algorithm of the warm-up; null without a warm-up.
  std::unique_ptr<Algorithm> warmup_;
  /// The step that has begun the average under way; kNever: none is.
  std::int64_t under_way_since_ = kNever;
  /// Not 0: that average is not to be mixed in.
  std::int64_t is_forgotten_ = 0;
};

}  // namespace

AlgorithmFactory read_late_average(const Options& options) {
  LateAverageOptions read;
  read.every = options.read(late_average::kEvery);
  read.late = options.read(late_average::kLate);
  read.warmup = options.read(late_average::kWarmup);
  if (read.late > read.every) {
    options.fail("late", concat(read.late, " steps are more than the ", read.every,
                                " between two averages, allowed: up to the value of every"));
  }
  return {
      [read](const AlgorithmSetup& setup) { return std::make_unique<LateAverage>(read, setup); },
      nullptr, std::nullopt, read.every};
}

}  // namespace gossamer

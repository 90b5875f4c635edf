#pragma once
// Which samples a rank trains on, and how many steps follow from them.
//
// A run whose world changes deals the rest of its epoch out to the ranks that are left. The plan
// keeps every such change, in the order of steps, so that a checkpoint can be continued with the
// same samples. Example: a run begins with three ranks and loses one after step 100. Its changes
// are (0, 3 ranks) and (100, 2 ranks).
//
// Thread safety: the rank's own thread only. Errors: ConfigError, CheckpointError.

#include <cstdint>
#include <optional>
#include <vector>

#include "apps/data/dealer.hpp"
#include "apps/train/batch_loader.hpp"
#include "apps/train/run_config.hpp"
#include "apps/train/step_count.hpp"
#include "apps/train/training_setup.hpp"
#include "base/state_visitor.hpp"
#include "core/checkpoint/manifest.hpp"

namespace gossamer::apps {

class DataPlan {
 public:
  /// Both arguments must outlive this object. Throws ConfigError.
  DataPlan(const RunConfig& config, const TrainingSetup& setup);

  [[nodiscard]] StepCount& steps() { return steps_; }
  [[nodiscard]] const StepCount& steps() const { return steps_; }
  /// The samples of a batch of this rank.
  [[nodiscard]] std::int64_t batch_size() const { return batches_->batch_size(); }
  /// The batches of a rank in an epoch.
  [[nodiscard]] std::int64_t batches_per_epoch() const { return batches_->batches_per_epoch(); }
  /// Returns batch number `part` of this rank's next step, on the host.
  Batch take(std::int64_t part);

  /// The changes as numbers, for a rank that joins.
  [[nodiscard]] std::vector<std::int64_t> changes() const { return numbers_of(changes_); }
  /// Takes another rank's changes, and deals what is left of the epoch out to the present ranks
  /// from `step` on.
  void take_changes(const std::vector<std::int64_t>& changes, std::int64_t step);
  /// Takes what the manifest of a checkpoint says of the beginning of its run.
  void begin_like(const Manifest& manifest);
  /// Shows the visitor how the data have been dealt out so far, if that has changed. Loading goes
  /// on from there.
  void visit_changes(StateVisitor& visitor);

 private:
  /// Deals the samples out as changes_ says, and scales the learning rate where it follows the
  /// number of ranks.
  void deal();
  /// Deals what is left of the epoch out to the present ranks from this step on.
  void deal_from(std::int64_t step);
  /// Goes on with the data where changes_ says, which a checkpoint has told. Deals what is left of
  /// the epoch anew where this run takes the data in another way. `total`: the steps that the run
  /// had, where its configuration had the same epochs.
  void deal_on(std::optional<std::int64_t> total);
  [[nodiscard]] WorldChange present_world(std::int64_t step) const;

  const RunConfig& config_;
  const TrainingSetup& setup_;
  /// Every change in how the data are dealt out, in the order of steps; the first is of step 0.
  std::vector<WorldChange> changes_;
  /// The batches of this rank. Present after the constructor.
  std::optional<BatchLoader> batches_;
  StepCount steps_;
};

}  // namespace gossamer::apps

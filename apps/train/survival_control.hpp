#pragma once
// Goes on when ranks die, and takes others in (fault.mode: survive).
//
// Protocol: run every part of the training in survive(). Where a part throws PeerLost, the ranks
// that are left
//   1. leave the exchanges that are under way,
//   2. meet in a new world (Elastic::reconfigure()),
//   3. make the steps that others have made and they have not,
//   4. take from the new rank 0 how the run has gone so far, and go on.
// Ranks that join take part in steps 2 and 4 (enter()). Example of three ranks: rank 1 dies in
// step 7. Ranks 0 and 2 leave their exchanges with it and make step 7 as ranks 0 and 1 of a world
// of two.
//
// Errors: CommError where this rank cannot go on, ConfigError where it does not fit the others.
// Thread safety: the rank's own thread only.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/train/checkpoint_control.hpp"
#include "apps/train/data_plan.hpp"
#include "apps/train/evaluator.hpp"
#include "apps/train/phase_control.hpp"
#include "apps/train/run_config.hpp"
#include "apps/train/run_recorder.hpp"
#include "apps/train/step_runner.hpp"
#include "apps/train/training_setup.hpp"
#include "comm/communicator.hpp"

namespace gossamer::apps {

/// How far a run has come in what follows its steps.
struct RunState {
  /// The last step has been recorded.
  bool is_recorded = true;
  /// This rank has trained to the end and saved its results.
  bool is_saved = false;
  /// All ranks have trained to the end and saved their results.
  bool has_ended = false;
};

/// The objects of a rank's training that change with the world.
struct TrainingParts {
  DataPlan& data;
  StepRunner& runner;
  PhaseControl& phases;
  Evaluator& evaluator;
  RunRecorder& recorder;
  CheckpointControl& checkpoints;
  RunState& state;
};

class SurvivalControl {
 public:
  /// All arguments and what they refer to must outlive this object. It changes `setup` with the
  /// world.
  SurvivalControl(const RunConfig& config, TrainingSetup& setup, const TrainingParts& parts);

  /// The run begins, in the communicator's world.
  void begin();
  /// Runs a part of the run. Where ranks are lost in the part (PeerLost), goes on with the ranks
  /// that are left, and leaves the part unfinished.
  void survive(const std::function<void()>& part);
  /// Collective. All ranks go on in this world. The caller may repeat the call after a PeerLost.
  void enter(const Membership& membership);
  /// This rank has joined others.
  [[nodiscard]] bool has_joined() const { return has_joined_; }
  [[nodiscard]] const Membership& membership() const { return membership_; }
  /// On rank 0: writes who is in the world, and the members of `change`.
  void write_members(const Json& change);

  /// Adds to status.json who is in the world.
  void add_status(Json& status) const;
  /// Shows the visitor the seconds that the run has lost.
  void visit(StateVisitor& visitor);

 private:
  using Clock = std::chrono::steady_clock;

  /// Collective of the ranks that are left and of ranks that join: goes on in a new world.
  void recover(const PeerLost& lost);
  void go_on(const PeerLost& lost);
  /// Collective. Leaves the present world, and returns the next one.
  Membership reconfigure();
  /// Makes the steps alone that this rank lacks.
  void catch_up(std::int64_t step);
  /// The rank that has come furthest before any rank catches up: it has made the most steps, and
  /// has recorded the last of them if a rank has.
  struct Furthest {
    /// -1: all ranks join. Membership::step may be larger, because it counts steps that only a lost
    /// rank has made. The ranks that are left would pass a step before they gather its figures.
    std::int64_t step = 0;
    /// The lowest such rank.
    int rank = 0;
  };
  /// Collective.
  [[nodiscard]] Furthest find_furthest() const;
  /// Collective: the ranks learn from rank 0 how the run has gone so far. `step`: Furthest::step.
  void introduce(std::int64_t step);
  /// Collective. The ranks take over what the furthest rank has of the things that ranks have in
  /// common.
  void adopt(const Furthest& furthest);
  void visit_common(StateVisitor& visitor);
  /// Takes the folder on rank 0, perhaps in place of a rank that is lost.
  void take_over_folder();
  /// Tells the user and the folder who is in the world. `seconds`: the time that was lost.
  void tell_members(const std::string& reason, double seconds);
  /// What is equal on all ranks of a run, on a few lines.
  [[nodiscard]] std::string description() const;
  /// The share of the time in steps with others.
  [[nodiscard]] double goodput() const {
    return std::clamp(1.0 - recovery_s_ / std::max(parts_.recorder.elapsed_s(), 1e-9), 0.0, 1.0);
  }

  const RunConfig& config_;
  TrainingSetup& setup_;
  TrainingParts parts_;
  /// The present world, where ranks may be lost. Without members: training has not begun.
  Membership membership_;
  /// The members of the world that last went on, and what changed when it did; null: no change so
  /// far.
  std::vector<std::int64_t> told_members_;
  Json last_change_ = nullptr;
  bool has_joined_ = false;
  /// Seconds without a step, because ranks were lost or joined.
  double recovery_s_ = 0.0;
  /// When survive() has last ended a part.
  Clock::time_point last_part_ = Clock::now();
};

}  // namespace gossamer::apps

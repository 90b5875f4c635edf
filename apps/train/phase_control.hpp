#pragma once
// Which phase of its run a rank is in, and on which of the phase's two topologies (phases.hpp).
//
// Before every step the caller calls begin_due_phase(). After a step, where measures_now() is true,
// it measures the consensus distance and calls note_consensus(). All ranks call alike, because a
// change of topology is collective.
//
// Errors: CommError, CheckpointError. Thread safety: the rank's own thread only.

#include <cstddef>
#include <string>
#include <vector>

#include "apps/train/evaluator.hpp"
#include "apps/train/phases.hpp"
#include "apps/train/run_config.hpp"
#include "apps/train/step_runner.hpp"
#include "apps/train/training_setup.hpp"
#include "base/state_visitor.hpp"

namespace gossamer::apps {

class PhaseControl {
 public:
  /// All arguments must outlive this object.
  PhaseControl(const RunConfig& config, const TrainingSetup& setup, StepRunner& runner,
               const StepCount& steps);

  /// The present algorithm and topology.
  [[nodiscard]] AlgorithmSwitch method() const { return phases_[phase_].method_with(is_sparse_); }
  /// Collective: begins the phase of the next step, if it is another one.
  void begin_due_phase();
  /// True if consensus control wants the distance after this step; the same on all ranks.
  [[nodiscard]] bool measures_now() const;
  /// Collective: changes the topology if consensus control says so after this measurement.
  void note_consensus(const Consensus& consensus);
  /// The phases of the present world count from now on. The caller makes the switch to method().
  void enter_world() { phases_ = config_.phases_in(setup_.world); }
  /// The topologies of all phases as one text, by which ranks compare them.
  [[nodiscard]] std::string topologies_text() const;
  /// Shows the visitor which phase it is. Loading is collective: the model goes on with the phase.
  void visit(StateVisitor& visitor);
  /// Shows the visitor the phase, for a rank that takes over what rank 0 says. The caller makes the
  /// switch.
  void visit_common(StateVisitor& visitor);

 private:
  /// Collective: goes on with a phase, on its dense or its sparse topology.
  void switch_to(std::size_t phase, bool is_sparse);

  const RunConfig& config_;
  const TrainingSetup& setup_;
  StepRunner& runner_;
  const StepCount& steps_;
  /// The phases of the run, for the present world.
  std::vector<RunPhase> phases_;
  /// The index of the present phase.
  std::size_t phase_ = 0;
  /// True: the phase's consensus control has chosen the sparse topology.
  bool is_sparse_ = false;
};

}  // namespace gossamer::apps

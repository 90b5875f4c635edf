#include "apps/train/phase_control.hpp"

#include <cstdint>
#include <iterator>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/exchange/topology_text.hpp"

namespace gossamer::apps {

PhaseControl::PhaseControl(const RunConfig& config, const TrainingSetup& setup, StepRunner& runner,
                           const StepCount& steps)
    : config_(config), setup_(setup), runner_(runner), steps_(steps), phases_(config.phases) {}

void PhaseControl::switch_to(std::size_t phase, bool is_sparse) {
  const TimelineScope scope(runner_.timeline(), {.what = "switch"});
  AlgorithmSwitch method = phases_[phase].method_with(is_sparse);
  // Consensus control must not move the models.
  if (phase == phase_) method.average = false;
  runner_.model().switch_to(method);
  phase_ = phase;
  is_sparse_ = is_sparse;
}

void PhaseControl::begin_due_phase() {
  std::size_t phase = phase_;
  while (phase + 1 < phases_.size() && phases_[phase + 1].first_step <= steps_.run()) {
    ++phase;
  }
  if (phase == phase_) return;
  switch_to(phase, false);
  if (setup_.is_first()) {
    setup_.logger.info(concat("after step ", steps_.run(), ": ", describe(phases_[phase].method)));
  }
}

bool PhaseControl::measures_now() const {
  const auto& control = phases_[phase_].control;
  return control && steps_.run() % control->every == 0;
}

void PhaseControl::note_consensus(const Consensus& consensus) {
  const ConsensusControl& control = phases_[phase_].control.value();
  const double distance = consensus.distance / consensus.norm;
  const double first_lr = config_.lr * steps_.lr_scale();
  const double lr_factor = first_lr > 0.0 ? runner_.model().engine().lr() / first_lr : 1.0;
  const bool is_sparse = control.chooses_sparse(is_sparse_, distance, lr_factor);
  if (is_sparse == is_sparse_) return;
  switch_to(phase_, is_sparse);
  if (setup_.is_first()) {
    setup_.logger.info(concat("after step ", steps_.run(), ": ", describe(method()),
                              ", because the consensus distance is ", shortest(distance),
                              " of the model and the target is ",
                              shortest(phases_[phase_].control->target * lr_factor)));
  }
}

std::string PhaseControl::topologies_text() const {
  std::string text;
  for (const RunPhase& phase : phases_) {
    for (const bool is_sparse : {false, phase.control.has_value()}) {
      const auto topology = phase.method_with(is_sparse).topology;
      text += topology ? text_of(*topology) + "\n" : "none\n";
    }
  }
  return text;
}

void PhaseControl::visit(StateVisitor& visitor) {
  if (phases_.size() == 1 && !phases_.front().control) return;
  auto phase = static_cast<std::int64_t>(phase_);
  std::int64_t is_sparse = is_sparse_ ? 1 : 0;
  visitor.number("train/phase", phase);
  visitor.number("train/sparse", is_sparse);
  if (!visitor.loads()) return;
  const bool fits = phase >= 0 && phase < std::ssize(phases_);
  if (!fits || (is_sparse != 0 && !phases_[static_cast<std::size_t>(phase)].control)) {
    throw CheckpointError(concat("phase ", phase, " is not one of this run's"));
  }
  switch_to(static_cast<std::size_t>(phase), is_sparse != 0);
}

void PhaseControl::visit_common(StateVisitor& visitor) {
  auto phase = static_cast<std::int64_t>(phase_);
  std::int64_t is_sparse = is_sparse_ ? 1 : 0;
  visitor.number("phase", phase);
  visitor.number("sparse", is_sparse);
  phase_ = static_cast<std::size_t>(phase);
  is_sparse_ = is_sparse != 0;
}

}  // namespace gossamer::apps

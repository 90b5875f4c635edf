#pragma once
// Notices that a run diverges: its loss grows far above where it began, or the models of its ranks
// drift apart without bound. All ranks hear the same numbers and come to the same result. Not
// thread safe. Errors: none, except for what a StateVisitor throws.

#include <cstdint>
#include <string>

#include "base/state_visitor.hpp"

namespace gossamer::apps {

class Divergence {
 public:
  /// A loss this many times the loss of the beginning is a sign of divergence.
  static constexpr double kLossGrowth = 1e3;
  /// Models of n ranks that move at random, each by itself, lie sqrt(n) times the norm of their
  /// mean from it. Models this many times farther from it are a sign of divergence.
  static constexpr double kDrift = 10.0;

  /// Without a finite loss for so many steps, a run that leaves such steps out learns nothing more.
  static constexpr std::int64_t kStepsNotFinite = 10;

  /// Notes the loss of the run's first step, which is the loss of the beginning. The first call
  /// counts.
  void begin(double loss);
  /// True if begin() has been called.
  [[nodiscard]] bool has_begun() const { return first_loss_ > 0.0; }
  /// Notes the loss of a step. Without begin(), the first finite loss is the loss of the beginning.
  void note_loss(std::int64_t step, double loss);
  /// `distance`: the consensus distance. `norm`: the norm of the mean model.
  void note_consensus(std::int64_t step, double distance, double norm, int num_ranks);

  /// True once there has been a sign.
  [[nodiscard]] bool has_diverged() const { return step_ >= 0; }
  /// The step after which the first sign came; -1: there was none.
  [[nodiscard]] std::int64_t step() const { return step_; }
  /// What the first sign was, as a sentence without a full stop.
  [[nodiscard]] const std::string& what() const { return what_; }
  /// True for the first call after the first sign, so that the run warns once.
  [[nodiscard]] bool is_news();

  /// Saves or loads the loss of the beginning.
  void visit(StateVisitor& visitor);

 private:
  void find(std::int64_t step, std::string what);

  /// 0: no loss has been heard.
  double first_loss_ = 0.0;
  /// The step of the last loss that was finite, or before the first that it has heard of; -1: none.
  std::int64_t finite_step_ = -1;
  std::int64_t step_ = -1;
  std::string what_;
  bool is_told_ = false;
};

}  // namespace gossamer::apps

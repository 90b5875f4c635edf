#pragma once
// A step that waits for its update, because ranks were lost before all ranks had agreed to make it.
//
// - kNone: no step waits.
// - kGradients: the rank has its own gradients of the step. The ranks that are left make the step
//   again from such gradients.
// - kSums: the rank also has the sums of all ranks' gradients. It updates with them if another rank
//   has done so; otherwise the step is made again.
//
// Example with three ranks: rank 2 dies while they agree on step 7. Rank 0 has passed the last
// barrier and updates. Rank 1 has not, so step 7 stays uncommitted there, with its sums. It learns
// from agree() that rank 0 has made 7 steps, and updates with the sums it has. Where rank 0 has not
// updated either, both make step 7 again.
//
// Thread safety: the rank's own thread only.

#include <cstdint>
#include <optional>

#include "comm/communicator.hpp"

namespace gossamer {

class UncommittedStep {
 public:
  enum class State : std::uint8_t { kNone, kGradients, kSums };

  /// The common knowledge of the ranks that have trained.
  struct Agreement {
    /// The most steps that a rank has made.
    std::int64_t num_steps = 0;
    /// The number of ranks that hold the step after these with gradients of their own: the step is
    /// made again from them. 0: no step is made again.
    std::int64_t num_holders = 0;
  };

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] bool is_pending() const { return state_ != State::kNone; }
  /// The rank has gradients, and perhaps not the sums.
  void hold_gradients() { state_ = State::kGradients; }
  /// The rank has the sums. `lr`: the learning rate with which other ranks may update.
  void hold_sums(double lr) {
    state_ = State::kSums;
    lr_ = lr;
  }
  /// All ranks make the update, or this rank does it now. The learning rate stays until
  /// forget_lr().
  void release() { state_ = State::kNone; }
  /// The learning rate with which other ranks may have updated; nothing: the schedule's.
  [[nodiscard]] std::optional<double> lr() const { return lr_; }
  void forget_lr() { lr_.reset(); }

  /// Collective. `num_steps`: the steps that this rank has made. `joins`: this rank has made no
  /// steps of the run.
  [[nodiscard]] Agreement agree(Communicator& communicator, std::int64_t num_steps,
                                bool joins) const;
  /// The step is made again from the gradients of `num_holders` ranks.
  void begin_again(std::int64_t num_holders);
  /// The step that was made again is over.
  void end_again() { num_summed_ = 0; }
  /// Notes that a step has its update, so this rank has gradients of its own in the next step.
  void count_step() { is_own_ = true; }
  /// In a step that is made again: the number of ranks that have gradients; 0: all ranks.
  [[nodiscard]] std::int64_t num_summed() const { return num_summed_; }

 private:
  State state_ = State::kNone;
  std::optional<double> lr_;
  /// This rank has gradients of the uncommitted step.
  bool is_own_ = true;
  std::int64_t num_summed_ = 0;
};

}  // namespace gossamer

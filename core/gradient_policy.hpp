#pragma once
// What may become of gradients before they are used: scaling, clipping, and what happens when one
// is not finite.
//
// Clipping multiplies gradients by min(1, c / (N + 1e-6)), c the largest norm allowed, N the L2
// norm of
//   per_bucket      the bucket's own gradients, as decent-dp does; depends on the bucket size;
//   global          all gradients of this rank (of the mean gradient under all-reduce), exactly:
//                   no update can begin before the backward pass is over;
//   delayed_global  the same, of the step before; keeps the overlap. The first step, which has no
//                   step before it, is clipped as under global.
//
// A gradient that is not finite ends the run (`abort`): it is found when it arrives, before its own
// bucket's update and exchange, so no peer ever mixes with what would come of it. Or all ranks skip
// the step together (`skip`): updates wait for the end of the backward pass, then one number is
// all-reduced; a skipped step mixes and exchanges as usual, and neither the learning-rate schedule
// nor the optimizers count it. Without communication each rank decides for itself.
//
// Sums, factors and decisions are work on the model's stream and stay in its memory
// (optim/gradient_control.hpp): the host need not know them for the step to go on. On processors,
// whose work is done at once, a gradient that is not finite is known when it arrives. Elsewhere
// the sweep leaves out what is not finite, and the host learns of it when the next step begins;
// under all-reduce, which has summed it by then, the ranks ask each other whose it was.
//
// Cost: every gradient is read once more, on processors when it arrives, while it is still warm in
// the cache. What defers updates keeps all gradients in memory until the backward pass is over and
// hides neither updates nor the waiting for exchanges behind it; the exchanges themselves still
// have a whole step.
//
// Not thread safe.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.hpp"
#include "base/stream.hpp"
#include "comm/communicator.hpp"
#include "core/state_visitor.hpp"
#include "optim/gradient_control.hpp"

namespace gossamer {

enum class NonFinite : std::uint8_t { kAbort, kSkip };

/// `none`, `per_bucket`, ... in the order of ClipMode.
std::vector<std::string> clip_mode_names();
/// Throws ConfigError for an unknown name.
ClipMode clip_mode(std::string_view name);
/// `abort`, `skip`.
std::vector<std::string> nonfinite_names();
NonFinite nonfinite(std::string_view name);

struct GradientOptions {
  ClipMode clip_mode = ClipMode::kNone;
  /// Positive unless nothing is clipped.
  double clip_norm = 1.0;
  NonFinite nonfinite = NonFinite::kAbort;
};

/// How a step ended.
struct StepReport {
  /// It was left out: mixed, not updated.
  bool skipped = false;
  /// Place in the list of squares of the first gradient that was not finite; negative: none.
  std::int64_t nonfinite = -1;
};

class GradientPolicy {
 public:
  /// `num_entries`: gradients of a step; `num_buckets`: groups of them. `stream` outlives this.
  /// Throws ConfigError for a norm that is not positive.
  GradientPolicy(const GradientOptions& options, Stream& stream, std::int64_t num_entries,
                 std::int64_t num_buckets);

  /// Gradients are multiplied by this before anything else; 1 over the loss scale, where there is
  /// one. Takes effect with the next gradient used.
  void set_scale(double scale) { scale_ = scale; }

  /// Updates of this step have to wait for the end of the backward pass.
  [[nodiscard]] bool defers() const;
  /// A gradient that is not finite ends the run.
  [[nodiscard]] bool aborts() const { return options_.nonfinite == NonFinite::kAbort; }
  /// The squared norm of every gradient of this step, float64 in the stream's memory; see
  /// gradient_control.hpp. Whoever updates with a gradient fills in its place before.
  [[nodiscard]] Block squares() const { return squares_.block(); }

  /// Once per step whose updates were deferred, when all squares are there: decides whether the
  /// step is skipped, which all ranks of `communicator`, if given, do together.
  void settle(Communicator* communicator);
  /// What becomes of the gradients of a bucket, whose squares are `squares`. `mean_factor`: what
  /// makes a mean of them (1 / size where they are sums over ranks).
  const GradientDecision* decide(std::int64_t bucket, const ConstBlock& squares,
                                 double mean_factor = 1.0);
  /// The same for gradients that the algorithm has scaled and clipped itself: only whether the step
  /// counts.
  const GradientDecision* decide_unscaled(std::int64_t bucket, const ConstBlock& squares);
  /// Names the norm that delayed_global keeps.
  void visit(StateVisitor& visitor);
  /// Ends a step.
  void end_step(double mean_factor = 1.0);
  /// How the last step ended, once for every end_step(). Waits until that is known.
  StepReport take_report();

 private:
  [[nodiscard]] DecisionRule rule(double mean_factor) const;
  GradientDecision* decide_by(const DecisionRule& rule, std::int64_t place,
                              const ConstBlock& squares);
  /// Null where every rank's own squares decide.
  [[nodiscard]] const double* flag() const;

  GradientOptions options_;
  Stream& stream_;
  double scale_ = 1.0;
  Buffer squares_;
  /// Of each bucket, then unscaled ones of each bucket.
  Buffer decisions_;
  std::int64_t num_buckets_;
  /// This rank's flag and the sum over all ranks, 2 numbers.
  Buffer flags_;
  Buffer last_norm_;
  bool has_last_norm_ = false;
  bool settled_ = false;
  /// Copies on the host of the squares, and behind them of the flag.
  Buffer report_;
  EventPtr reported_;
};

/// Waits for the stream: whether a block of a floating-point type holds something that is not
/// finite.
bool holds_nonfinite(Stream& stream, const ConstBlock& block);

}  // namespace gossamer

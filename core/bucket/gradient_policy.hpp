#pragma once
// The gradient policy scales gradients, clips them, and decides what happens when one is not
// finite.
//
// Clipping multiplies gradients by min(1, c / (N + 1e-6)). c is the largest norm allowed. N is the
// L2 norm of different gradients in each mode:
//   per_bucket      the bucket's own gradients, as in decent-dp. The result depends on the bucket
//                   size.
//   global          all gradients of this rank, or the mean gradient under all-reduce. This is
//                   exact, but no update can begin before the backward pass is over.
//   delayed_global  the same as global, but of the step before, so updates still overlap with the
//                   backward pass. The first step has no step before it and is clipped as in
//                   global.
//
// A gradient that is not finite has one of two consequences:
//   abort           The run ends. On processors the policy finds the gradient when it arrives,
//                   before the update and exchange of its bucket, so it never reaches a peer.
//   skip            All ranks skip the step together. Updates wait for the end of the backward
//                   pass, and the ranks all-reduce one number. A skipped step mixes and exchanges
//                   as usual; neither the learning-rate schedule nor the optimizers count it.
//                   Without communication each rank decides for itself.
//
// Sums, factors and decisions are work on the model's stream and stay in the stream's memory
// (optim/gradient_control.hpp). So a step goes on without the host knowing them; without NCCL the
// host waits for the one number that `skip` all-reduces. On a stream that
// lags behind (a GPU's), the sweep leaves out gradients that are not finite, and the host learns of
// them when the next step begins. Under all-reduce the gradients have been summed by then, and the
// pipeline looks whether the bad one was this rank's (Bucket::last_own_gradient()).
//
// Cost: every gradient is read once more; on processors this happens when it arrives and is still
// in the cache. Deferred updates keep all gradients in memory until the backward pass is over.
// Neither the updates nor the waiting for exchanges then overlap with the backward pass; the
// exchanges themselves still have a whole step.
//
// Not thread safe.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.hpp"
#include "base/options.hpp"
#include "base/state_visitor.hpp"
#include "base/stream.hpp"
#include "comm/communicator.hpp"
#include "optim/gradient_control.hpp"

namespace gossamer {

enum class NonFinite : std::uint8_t {
  kAbort,
  kSkip,
  /// The owner of the gradients gets them as they are, and decides. For rules that are not the
  /// engine's (optim/external_optimizer.hpp), whose parameters stay as they are.
  kKeep,
};

/// `none`, `per_bucket`, ... in the order of ClipMode.
std::vector<std::string> clip_mode_names();
/// Throws ConfigError for an unknown name.
ClipMode clip_mode(std::string_view name);
/// `abort`, `skip`; kKeep is no choice of users.
std::vector<std::string> nonfinite_names();
NonFinite nonfinite(std::string_view name);

/// For which way to train the learning rate and the largest norm were chosen
/// (core/step/recipe.hpp).
enum class Recipe : std::uint8_t {
  /// For the way of the run, which takes them as they are.
  kOwn,
  /// For all-reduce with the same total batch.
  kAllReduce,
  /// The same, and the caller clips and updates. The engine only measures the factor.
  kMeasured,
};

/// `own`, `allreduce`; kMeasured is no choice of users.
std::vector<std::string> recipe_names();

struct GradientOptions {
  ClipMode clip_mode = ClipMode::kNone;
  /// The largest norm allowed; must be positive unless the mode is kNone.
  double clip_norm = 1.0;
  NonFinite nonfinite = NonFinite::kAbort;
  Recipe recipe = Recipe::kOwn;
};

/// Reads the keys grad_clip, grad_clip_norm and recipe of a section. Throws ConfigError, also for a
/// norm without a mode, which would clip nothing.
void read_clipping(const Options& section, GradientOptions& gradients);
/// Reads the key recipe of a section. Throws ConfigError.
Recipe read_recipe(const Options& section);

/// How a step has ended.
struct StepReport {
  /// True: the step was skipped, so parameters were mixed, not updated.
  bool skipped = false;
  /// The index in squares() of the first gradient that was not finite; negative: none.
  std::int64_t nonfinite = -1;
  /// The L2 norm of the step's gradients before clipping: this rank's own, or the mean under
  /// all-reduce.
  double norm = 0.0;
};

class GradientPolicy {
 public:
  /// `num_entries` is the number of gradients of a step, `num_buckets` the number of buckets that
  /// they belong to. `stream` must outlive the policy. Throws ConfigError for a norm that is not
  /// positive.
  GradientPolicy(const GradientOptions& options, Stream& stream, std::int64_t num_entries,
                 std::int64_t num_buckets);

  /// Makes room for the decisions of so many buckets, in place of the decisions of the step before.
  /// Call this between two steps, when the stream's work is done.
  void set_num_buckets(std::int64_t num_buckets);
  /// Sets the factor that gradients are multiplied by before anything else: 1 over the loss scale,
  /// if there is one. Takes effect with the next gradient used.
  void set_scale(double scale) { scale_ = scale; }
  /// Multiplies the largest norm by a factor from the next gradient used on.
  void set_norm_factor(double factor) { norm_factor_ = factor; }
  /// Clips to another norm, by another mode, from the next step on. Call this between two steps.
  void set_clipping(ClipMode mode, double norm);

  /// True: updates of this step must wait for the end of the backward pass.
  [[nodiscard]] bool defers() const;
  /// True: decisions depend on norms.
  [[nodiscard]] bool clips() const { return options_.clip_mode != ClipMode::kNone; }
  /// True: a gradient that is not finite ends the run.
  [[nodiscard]] bool aborts() const { return options_.nonfinite == NonFinite::kAbort; }
  /// True: a step with a gradient that is not finite does not count.
  [[nodiscard]] bool skips() const { return options_.nonfinite == NonFinite::kSkip; }
  /// True: the owner of the gradients decides.
  [[nodiscard]] bool keeps() const { return options_.nonfinite == NonFinite::kKeep; }
  /// The squared norms of the gradients of this step: num_entries float64 values in the stream's
  /// memory (gradient_control.hpp). The pipeline must fill in a gradient's place before it updates
  /// with that gradient.
  [[nodiscard]] Block squares() const { return squares_.block(); }

  /// squares() <- their sums over the ranks of `shards`, whose gradients are shards of the same
  /// ones. Call this before decide_step().
  void add_norms_of(Communicator& shards);
  /// Decides whether the step is skipped. Call this once per step with deferred updates, after
  /// filling in all squares. The ranks of `communicator` decide together; with a null communicator
  /// this rank decides alone.
  void decide_step(Communicator* communicator);
  /// Enqueues the decisions about the gradients of neighbouring buckets, and returns the place of
  /// the first one in the stream's memory; the others follow it. `squares`: the squared norms of
  /// each bucket's gradients. `mean_factor`: the factor that turns the gradients into means (1 /
  /// size where they are sums over ranks).
  const GradientDecision* decide(std::int64_t first_bucket, std::vector<ConstBlock> squares,
                                 double mean_factor = 1.0);
  /// Decides as decide() does about one bucket, for gradients that the algorithm has scaled and
  /// clipped itself. The decision only says whether the step counts.
  const GradientDecision* decide_unscaled(std::int64_t bucket, const ConstBlock& squares);
  /// Shows the visitor the norm that delayed_global keeps from step to step.
  void visit(StateVisitor& visitor);
  /// Ends a step: keeps its norm for delayed_global, and starts copying its report to the host.
  void end_step(double mean_factor = 1.0);
  /// How the last step has ended. Waits until the host knows it. Call this once for every
  /// end_step().
  StepReport take_report();

 private:
  [[nodiscard]] DecisionRule rule(double mean_factor) const;
  GradientDecision* decide_by(const DecisionRule& rule, std::int64_t place,
                              std::vector<ConstBlock> squares);
  /// The flag that all ranks share, or zero where gradients count as they are; null where the
  /// policy is to abort.
  [[nodiscard]] const double* flag() const;

  GradientOptions options_;
  Stream& stream_;
  double scale_ = 1.0;
  double norm_factor_ = 1.0;
  Buffer squares_;
  /// The sums of add_norms_of(); empty before its first call.
  Buffer sums_;
  /// The decisions of all buckets, then the unscaled decisions of all buckets.
  Buffer decisions_;
  std::int64_t num_buckets_ = 0;
  /// Two numbers: this rank's flag, and the sum of the flags of all ranks.
  Buffer flags_;
  Buffer last_norm_;
  bool has_last_norm_ = false;
  bool settled_ = false;
  /// Host copies of the squares, followed by the flag.
  Buffer report_;
  EventPtr reported_;
  /// The factor by which the norms of the report are multiplied.
  double report_unit_ = 1.0;
};

/// True if a block of a floating-point type holds an element that is not finite. Waits for the
/// stream.
bool holds_nonfinite(Stream& stream, const ConstBlock& block);

}  // namespace gossamer

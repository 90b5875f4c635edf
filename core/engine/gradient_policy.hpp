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
// Cost: every gradient is read once more when it arrives, while it is still warm in the cache. What
// defers updates keeps all gradients in memory until the backward pass is over and hides neither
// updates nor the waiting for exchanges behind it; the exchanges themselves still have a whole
// step.
//
// Not thread safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gossamer/comm/communicator.hpp"
#include "gossamer/optim/gradient_stats.hpp"

namespace gossamer {

enum class ClipMode : std::uint8_t { kNone, kPerBucket, kGlobal, kDelayedGlobal };
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

class GradientPolicy {
 public:
  /// `rank` is named by errors. Throws ConfigError for a norm that is not positive.
  GradientPolicy(const GradientOptions& options, int rank);

  /// Gradients are multiplied by this before anything else; 1 over the loss scale, where there is
  /// one. Takes effect with the next gradient used.
  void set_scale(double scale) { scale_ = scale; }

  /// Updates of this step have to wait for the end of the backward pass.
  [[nodiscard]] bool defers() const;
  /// Takes note of a gradient. `whose` names it in an error. Throws NonFiniteError under `abort`.
  void accept(const GradientStats& stats, std::string_view whose, std::int64_t step);
  /// Once per step whose updates were deferred, when all gradients have arrived: takes their sum of
  /// squares, and returns whether the step is skipped, which all ranks of `communicator`, if given,
  /// decide together.
  bool settle(Communicator* communicator, double all_squares);

  /// What the gradients of a bucket are to be multiplied by. `bucket_squares`: their sum of squares
  /// before any factor; `mean_factor`: what makes a mean of them (1 / size where they are sums over
  /// ranks).
  [[nodiscard]] double factor(double bucket_squares, double mean_factor = 1.0) const;
  /// Ends a step whose gradients had this sum of squares. Returns whether it was skipped.
  bool end_step(double all_squares, double mean_factor = 1.0);

 private:
  [[nodiscard]] double clip(double norm) const;

  GradientOptions options_;
  int rank_;
  double scale_ = 1.0;
  bool found_nonfinite_ = false;
  bool skips_ = false;
  /// Of this step, once it is settled.
  double all_squares_ = 0.0;
  std::optional<double> last_norm_;
};

}  // namespace gossamer

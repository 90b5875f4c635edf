#pragma once
// Decides where the gradients lie what factor they are multiplied by. Work on a stream sums the
// squares of the gradients and turns the sums into a factor; the sweep reads the factor when it
// runs. So the host need not know the outcome for the step to go on.
//
// All numbers are float64 in the stream's memory. A squared norm is NaN if and only if a gradient
// holds an element that is not finite. A squared norm may be infinite although all elements are
// finite, because squares of float64 numbers may overflow.
//
// Ownership: all memory belongs to the caller and must stay until the stream's work is done.

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "base/host_device.hpp"
#include "base/stream.hpp"
#include "base/types.hpp"
#include "base/worker_pool.hpp"
#include "optim/gradient_stats.hpp"
#include "optim/simd.hpp"

namespace gossamer {

/// The norm by which gradients are clipped; see core/bucket/gradient_policy.hpp.
enum class ClipMode : std::uint8_t { kNone, kPerBucket, kGlobal, kDelayedGlobal };

/// The outcome for the gradients of a step; a sweep reads it when it runs.
struct GradientDecision {
  /// Gradients are multiplied by this.
  double factor = 1.0;
  /// 0: the step is skipped; parameters are mixed, not updated.
  std::int64_t apply = 1;
};

/// How to compute a factor from a norm.
struct DecisionRule {
  ClipMode clip_mode = ClipMode::kNone;
  double clip_norm = 1.0;
  /// Multiplies the gradients before they are clipped.
  double unit = 1.0;
};

/// min(1, c / (norm + 1e-6)) with c = `clip_norm`, as torch.nn.utils.clip_grad_norm_ and decent-dp
/// compute it.
GOSSAMER_HOST_DEVICE inline double clip_factor(double norm, double clip_norm) {
  constexpr double kEps = 1e-6;
  const double factor = clip_norm / (norm + kEps);
  return factor < 1.0 ? factor : 1.0;
}

/// The factor for gradients. `squares`: the squared norm of the gradients that `rule.clip_mode`
/// looks at, before any factor. `last_norm`: the norm of the step before, `unit` included; negative
/// when there is no such step.
GOSSAMER_HOST_DEVICE inline double factor_of(const DecisionRule& rule, double squares,
                                             double last_norm) {
  if (rule.clip_mode == ClipMode::kNone) return rule.unit;
  const bool late = rule.clip_mode == ClipMode::kDelayedGlobal && last_norm >= 0.0;
  return rule.unit * clip_factor(late ? last_norm : rule.unit * sqrt(squares), rule.clip_norm);
}

/// Elements of `scratch` that enqueue_squares() needs on a stream that does not run on processors.
/// Streams on processors need none.
std::int64_t squares_scratch_numel(std::span<const std::int64_t> gradient_numels);

struct SquaresInput {
  /// Float32, float64 or bfloat16, all of one type. Null data: the gradient is missing.
  std::vector<ConstBlock> gradients = {};
  /// Written: one float64 per gradient, its squared norm; 0 for a missing gradient.
  Block squares = {};
  /// Float64, squares_scratch_numel() elements.
  Block scratch = {};
  SimdPath simd = best_simd_path();
  WorkerPool* pool = nullptr;
};
/// Writes the squared norm of every gradient, as work on the stream.
void enqueue_squares(Stream& stream, SquaresInput input);

/// *flag <- 1 if any of `squares` is NaN, else 0.
void enqueue_flag(Stream& stream, const ConstBlock& squares, double* flag);

struct DecisionInput {
  /// The squared norms of the gradients that the clip mode looks at, for each decision.
  std::vector<ConstBlock> squares = {};
  DecisionRule rule = {};
  /// The norm of the last step, as factor_of() takes it; never null.
  const double* last_norm = nullptr;
  /// A flag: not 0: no rank applies the step. Null: this rank alone decides, by whether `squares`
  /// hold a NaN.
  const double* flag = nullptr;
  /// Written: as many decisions as `squares` has blocks, one behind the other.
  GradientDecision* decisions = nullptr;
};
/// Writes decisions, as work on the stream.
void enqueue_decisions(Stream& stream, DecisionInput input);

/// *last_norm <- unit * sqrt(sum of `squares`), except where `flag` is given and *flag is not 0.
void enqueue_norm(Stream& stream, const ConstBlock& squares, double unit, const double* flag,
                  double* last_norm);

}  // namespace gossamer

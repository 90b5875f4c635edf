#pragma once
// What becomes of gradients before they are used, decided where they lie: work on a stream that
// sums their squares and turns the sums into the factor that the sweep multiplies them by. The host
// need not know the outcome for the step to go on.
//
// All numbers are float64 in the stream's memory. A squared norm is NaN where a gradient holds
// something that is not finite; squares of finite float64 numbers may be infinite.

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "base/host_device.hpp"
#include "base/stream.hpp"
#include "base/types.hpp"
#include "base/worker_pool.hpp"
#include "optim/simd.hpp"

namespace gossamer {

/// Which norm gradients are clipped by; see core/gradient_policy.hpp.
enum class ClipMode : std::uint8_t { kNone, kPerBucket, kGlobal, kDelayedGlobal };

/// What a sweep reads when it runs.
struct GradientDecision {
  /// Gradients are multiplied by this.
  double factor = 1.0;
  /// 0: parameters are mixed and not updated.
  std::int64_t apply = 1;
};

struct DecisionRule {
  ClipMode clip_mode = ClipMode::kNone;
  double clip_norm = 1.0;
  /// Multiplies gradients before they are clipped.
  double unit = 1.0;
};

/// min(1, c / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ and decent-dp have it.
GOSSAMER_HOST_DEVICE inline double clip_factor(double norm, double clip_norm) {
  constexpr double kEps = 1e-6;
  const double factor = clip_norm / (norm + kEps);
  return factor < 1.0 ? factor : 1.0;
}

/// `squares`: of the gradients that count for the mode, before any factor. `last_norm`: that of the
/// step before, `unit` included; negative where there is none.
GOSSAMER_HOST_DEVICE inline double factor_of(const DecisionRule& rule, double squares,
                                             double last_norm) {
  if (rule.clip_mode == ClipMode::kNone) return rule.unit;
  const bool late = rule.clip_mode == ClipMode::kDelayedGlobal && last_norm >= 0.0;
  return rule.unit * clip_factor(late ? last_norm : rule.unit * sqrt(squares), rule.clip_norm);
}

/// Elements of one partial sum.
inline constexpr std::int64_t kSquaresChunk = std::int64_t{1} << 16;
/// Elements of `scratch` that enqueue_squares() needs on a stream that does not run on processors.
std::int64_t squares_scratch_numel(std::span<const std::int64_t> gradient_numels);

struct SquaresInput {
  /// Float32, float64 or bfloat16, all alike; null data: there is none.
  std::vector<ConstBlock> gradients = {};
  /// Written: the squared norm of each gradient, 0 where there is none.
  Block squares = {};
  Block scratch = {};
  SimdPath simd = best_simd_path();
  WorkerPool* pool = nullptr;
};
void enqueue_squares(Stream& stream, SquaresInput input);

/// flag <- 1 if any of `squares` is NaN, else 0.
void enqueue_flag(Stream& stream, const ConstBlock& squares, double* flag);

struct DecisionInput {
  /// Of the gradients that count for the mode.
  ConstBlock squares = {};
  DecisionRule rule = {};
  /// As factor_of() takes it.
  const double* last_norm = nullptr;
  /// Not 0: nobody applies the step. Null: this rank's own squares decide.
  const double* flag = nullptr;
  GradientDecision* decision = nullptr;
};
void enqueue_decision(Stream& stream, const DecisionInput& input);

/// last_norm <- unit times the root of the sum of all squares, unless the flag is up.
void enqueue_norm(Stream& stream, const ConstBlock& squares, double unit, const double* flag,
                  double* last_norm);

}  // namespace gossamer

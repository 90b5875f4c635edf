#include "gossamer/core/engine/gradient_policy.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "gossamer/core/base/error.hpp"
#include "gossamer/core/base/registry.hpp"
#include "gossamer/core/base/text.hpp"
#include "gossamer/core/engine/consensus.hpp"

namespace gossamer {
namespace {

// torch.nn.utils.clip_grad_norm_ and decent-dp have the same.
constexpr double kClipEps = 1e-6;

struct ClipModeEntry {
  std::string_view name;
  ClipMode mode;
};
constexpr std::array kClipModes = {
    ClipModeEntry{"none", ClipMode::kNone},
    ClipModeEntry{"per_bucket", ClipMode::kPerBucket},
    ClipModeEntry{"global", ClipMode::kGlobal},
    ClipModeEntry{"delayed_global", ClipMode::kDelayedGlobal},
};

struct NonFiniteEntry {
  std::string_view name;
  NonFinite policy;
};
constexpr std::array kNonFinite = {
    NonFiniteEntry{"abort", NonFinite::kAbort},
    NonFiniteEntry{"skip", NonFinite::kSkip},
};

}  // namespace

std::vector<std::string> clip_mode_names() { return names_of(kClipModes); }
ClipMode clip_mode(std::string_view name) { return row_of(kClipModes, "clip mode", name).mode; }
std::vector<std::string> nonfinite_names() { return names_of(kNonFinite); }
NonFinite nonfinite(std::string_view name) {
  return row_of(kNonFinite, "policy for non-finite gradients", name).policy;
}

GradientPolicy::GradientPolicy(const GradientOptions& options, int rank)
    : options_(options), rank_(rank) {
  const bool positive = std::isfinite(options.clip_norm) && options.clip_norm > 0.0;
  if (options.clip_mode != ClipMode::kNone && !positive) {
    throw ConfigError(concat("the norm that gradients are clipped to is ", options.clip_norm,
                             ", allowed: a number > 0"));
  }
}

bool GradientPolicy::defers() const {
  return options_.nonfinite == NonFinite::kSkip || options_.clip_mode == ClipMode::kGlobal ||
         (options_.clip_mode == ClipMode::kDelayedGlobal && !last_norm_);
}

void GradientPolicy::accept(const GradientStats& stats, std::string_view whose, std::int64_t step) {
  if (stats.finite) return;
  if (options_.nonfinite == NonFinite::kAbort) {
    throw NonFiniteError(concat("rank ", rank_, ", step ", step, ": the gradient of ", whose,
                                " is not finite; try a smaller learning rate, clipping, or leave "
                                "such steps out with train.nonfinite: skip"));
  }
  found_nonfinite_ = true;
}

bool GradientPolicy::settle(Communicator* communicator, double all_squares) {
  all_squares_ = all_squares;
  if (options_.nonfinite != NonFinite::kSkip) return false;
  const double mine = found_nonfinite_ ? 1.0 : 0.0;
  skips_ =
      communicator != nullptr ? sum_over_ranks(*communicator, {mine})[0] > 0.0 : found_nonfinite_;
  return skips_;
}

double GradientPolicy::clip(double norm) const {
  return std::min(1.0, options_.clip_norm / (norm + kClipEps));
}

double GradientPolicy::factor(double bucket_squares, double mean_factor) const {
  const double unit = scale_ * mean_factor;
  switch (options_.clip_mode) {
    case ClipMode::kNone:
      return unit;
    case ClipMode::kPerBucket:
      return unit * clip(unit * std::sqrt(bucket_squares));
    case ClipMode::kGlobal:
      return unit * clip(unit * std::sqrt(all_squares_));
    case ClipMode::kDelayedGlobal:
      return unit * clip(last_norm_ ? *last_norm_ : unit * std::sqrt(all_squares_));
  }
  return unit;
}

bool GradientPolicy::end_step(double all_squares, double mean_factor) {
  if (!skips_) last_norm_ = scale_ * mean_factor * std::sqrt(all_squares);
  found_nonfinite_ = false;
  return std::exchange(skips_, false);
}

}  // namespace gossamer

#pragma once
// The options and the coefficients of a step that all optimizers of the Adam family share.

#include <cmath>
#include <cstdint>

#include "base/host_device.hpp"
#include "base/options.hpp"
#include "optim/optimizer.hpp"

namespace gossamer {

/// How weight decay enters. Coupled: it is added to the gradient (Adam with L2). Decoupled: it is
/// taken from the parameter directly (AdamW; Loshchilov and Hutter, 2019).
enum class Decay { kCoupled, kDecoupled };

inline constexpr NumberPairOption kMomentBetas{
    "betas",
    "decay of the two moments",
    {.fallback = {0.9, 0.999}, .each = {.min = 0.0, .max = 1.0, .below_max = true}}};
inline constexpr NumberOption kMomentEps{
    "eps", "added to the root of the second moment", {.fallback = 1e-8, .min = 0.0}};

struct MomentOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

/// Reads `betas` and `eps`. Throws ConfigError.
inline MomentOptions read_moment_options(const Options& options) {
  const auto [beta1, beta2] = options.read(kMomentBetas);
  return {beta1, beta2, options.read(kMomentEps)};
}

template <class T>
/// The numbers of one step, computed once per parameter and step.
struct MomentCoefficients {
  T beta1;
  T beta2;
  T new1;        // 1 - beta1
  T new2;        // 1 - beta2
  T step_size;   // lr * step_scale / (1 - beta1^t)
  T root_scale;  // 1 / sqrt(1 - beta2^t)
  T eps;
  T shrink;      // decoupled: the parameter is multiplied by this
  T decay;       // coupled: this times the parameter is added to the gradient
  T accumulate;  // 1 / accum_iter
};

/// `t` counts updates of the moments, from 1.
template <class T>
MomentCoefficients<T> moment_coefficients(const MomentOptions& options, Decay decay,
                                          const ParameterUpdate& update, std::int64_t t,
                                          std::int64_t accum_iter) {
  const auto exponent = static_cast<double>(t);
  const double correction1 = 1.0 - std::pow(options.beta1, exponent);
  const double correction2 = 1.0 - std::pow(options.beta2, exponent);
  const bool coupled = decay == Decay::kCoupled;
  return {static_cast<T>(options.beta1),
          static_cast<T>(options.beta2),
          static_cast<T>(1.0 - options.beta1),
          static_cast<T>(1.0 - options.beta2),
          static_cast<T>(update.lr * update.step_scale / correction1),
          static_cast<T>(1.0 / std::sqrt(correction2)),
          static_cast<T>(options.eps),
          static_cast<T>(coupled ? 1.0 : 1.0 - update.lr * update.weight_decay),
          static_cast<T>(coupled ? update.weight_decay : 0.0),
          static_cast<T>(1.0 / static_cast<double>(accum_iter))};
}

/// Applies weight decay to parameter and gradient.
template <Decay kDecay, class T>
GOSSAMER_HOST_DEVICE void apply_decay(const MomentCoefficients<T>& c, T& p, T& g) {
  if constexpr (kDecay == Decay::kCoupled) {
    g += c.decay * p;
  } else {
    p *= c.shrink;
  }
}

/// p <- p - step_size * m / (sqrt(v) * root_scale + eps).
template <class T>
GOSSAMER_HOST_DEVICE void apply_moments(const MomentCoefficients<T>& c, T& p, T m, T v) {
  p -= c.step_size * m / (std::sqrt(v) * c.root_scale + c.eps);
}

}  // namespace gossamer

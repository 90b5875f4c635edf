#include "base/random.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <stdexcept>

namespace gossamer {
namespace {

/// SplitMix64's output function (Steele, Lea, Flood, 2014): spreads nearby seeds apart.
std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

}  // namespace

Random::Random(std::uint64_t seed, std::uint64_t stream)
    : engine_(scramble(scramble(seed) ^ scramble(~stream))) {}

double Random::uniform() { return static_cast<double>(bits() >> 11U) * 0x1.0p-53; }

double Random::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

double Random::gamma(double shape) {
  if (!(shape > 0.0)) throw std::logic_error("Random::gamma: shape must be positive");
  if (shape < 1.0) {
    // Two statements fix the order of the draws; in one product the compiler could choose the
    // order.
    const double larger = gamma(shape + 1.0);
    return larger * std::pow(1.0 - uniform(), 1.0 / shape);
  }
  const double d = shape - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    const double x = normal();
    const double v = std::pow(1.0 + c * x, 3.0);
    if (v > 0.0 && std::log(1.0 - uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return d * v;
    }
  }
}

std::int64_t Random::below(std::int64_t bound) {
  if (bound <= 0) throw std::logic_error("Random::below: bound must be positive");
  const auto range = static_cast<std::uint64_t>(bound);
  const std::uint64_t limit =
      std::numeric_limits<std::uint64_t>::max() - std::numeric_limits<std::uint64_t>::max() % range;
  std::uint64_t draw = bits();
  while (draw >= limit) draw = bits();
  return static_cast<std::int64_t>(draw % range);
}

}  // namespace gossamer

#pragma once
// Random numbers that depend on the seed alone: they are the same on every rank, machine and
// compiler. The standard library does not specify its distributions to that degree, so they are not
// used here.

#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace gossamer {

/// One stream of random numbers. Not thread safe; make one per use. Streams with different
/// `stream` numbers are independent for the same seed.
class Random {
 public:
  explicit Random(std::uint64_t seed, std::uint64_t stream = 0);

  std::uint64_t bits() { return engine_(); }
  /// A number in [0, 1), a multiple of 2^-53.
  double uniform();
  /// A number in [low, high).
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// Mean 0, variance 1 (Box and Muller, 1958).
  double normal();
  /// Gamma distribution with scale 1 (Marsaglia and Tsang, 2000); shape > 0, or std::logic_error.
  double gamma(double shape);
  /// An integer from 0 to bound - 1, all equally likely; bound > 0, or std::logic_error.
  std::int64_t below(std::int64_t bound);

  /// Shuffles `items` in place (Fisher and Yates).
  template <class T>
  void shuffle(std::span<T> items) {
    for (std::size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
    }
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace gossamer

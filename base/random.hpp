#pragma once
// Random numbers that depend on the seed alone: the same on every rank, machine and compiler
// (the distributions of the standard library are not specified to that degree).

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
  /// In [0, 1).
  double uniform();
  /// In [low, high).
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// Mean 0, variance 1 (Box and Muller, 1958).
  double normal();
  /// Gamma distribution with scale 1 (Marsaglia and Tsang, 2000); shape > 0.
  double gamma(double shape);
  /// In 0 .. bound-1, without bias; bound > 0.
  std::int64_t below(std::int64_t bound);

  /// Fisher and Yates shuffle.
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

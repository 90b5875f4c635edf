#pragma once
// A problem with a known answer, on which docs/algorithms.md compares methods.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.hpp"

namespace gossamer {

/// f_i(x) = (x - b_i)^T A_i (x - b_i) / 2 with A_i diagonal in [0.2, 1] and b_i normal.
class Quadratics {
 public:
  static constexpr int kRanks = 16;
  static constexpr std::int64_t kDim = 8;

  explicit Quadratics(std::uint64_t seed) {
    Random random(seed, 0);
    std::vector<double> weights(kDim);
    optimum_.resize(kDim);
    for (int rank = 0; rank < kRanks; ++rank) {
      auto& a = curvatures_.emplace_back();
      auto& b = centres_.emplace_back();
      for (std::size_t d = 0; d < static_cast<std::size_t>(kDim); ++d) {
        a.push_back(random.uniform(0.2, 1.0));
        b.push_back(random.normal());
        weights[d] += a[d];
        optimum_[d] += a[d] * b[d];
      }
    }
    for (std::size_t d = 0; d < weights.size(); ++d) optimum_[d] /= weights[d];
  }

  void gradient(int rank, std::span<const double> x, std::span<double> g) const {
    const auto place = static_cast<std::size_t>(rank);
    for (std::size_t d = 0; d < g.size(); ++d) {
      g[d] = curvatures_[place][d] * (x[d] - centres_[place][d]);
    }
  }
  [[nodiscard]] const std::vector<double>& optimum() const { return optimum_; }

 private:
  std::vector<std::vector<double>> curvatures_;
  std::vector<std::vector<double>> centres_;
  std::vector<double> optimum_;
};

}  // namespace gossamer

#pragma once
// A problem with a known answer, on which docs/design/algorithm-tests.md compares methods, and how
// near the methods of gossamer come to the answer.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/lab/simulate/virtual_ranks.hpp"
#include "base/options.hpp"
#include "base/random.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

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

/// A method of gossamer: an algorithm with an optimizer.
struct Method {
  std::string algorithm = "gossip";
  std::string algorithm_options = {};
  std::string optimizer = "sgd";
  std::string optimizer_options = {};
  double lr = 0.1;
};

inline apps::VirtualRanks ranks_of(const Method& method, const std::string& topology, double lr) {
  return apps::VirtualRanks(
      {.topology =
           make_topology(topology, {.size = Quadratics::kRanks, .node_size = Quadratics::kRanks}),
       .world_size = Quadratics::kRanks,
       .dim = Quadratics::kDim,
       .algorithm = {method.algorithm, Options::parse(method.algorithm_options)},
       .optimizer = make_optimizer(method.optimizer, Options::parse(method.optimizer_options)),
       .schedule = make_schedule("constant", {.lr = lr})});
}

/// The root mean square distance of the ranks from the common optimum after 4000 steps from zero;
/// mean over the first draws of the problem.
inline double floor_of(const Method& method, const std::string& topology) {
  constexpr std::uint64_t kNumDraws = 5;
  double sum = 0.0;
  for (std::uint64_t seed = 1; seed <= kNumDraws; ++seed) {
    const Quadratics problem(seed);
    apps::VirtualRanks ranks = ranks_of(method, topology, method.lr);
    for (int step = 0; step < 4000; ++step) {
      ranks.step([&](int rank, std::span<const double> x, std::span<double> g) {
        problem.gradient(rank, x, g);
      });
    }
    sum += ranks.distance_from(problem.optimum());
  }
  return sum / static_cast<double>(kNumDraws);
}

}  // namespace gossamer

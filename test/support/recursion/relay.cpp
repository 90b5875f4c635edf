#include "test/support/recursion/ranks.hpp"

#include <algorithm>
#include <utility>

namespace gossamer::recursion {
namespace {

/// Edges between each two ranks.
std::vector<std::vector<int>> distances_in_graph(const Ranks& ranks) {
  const Eigen::MatrixXd w = ranks.mixing(0);
  const std::size_t n = ranks.size();
  std::vector<std::vector<int>> d(n, std::vector<int>(n));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      const bool joined = w(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(j)) > 0.0;
      d[i][j] = i == j ? 0 : joined ? 1 : static_cast<int>(n);
    }
  }
  for (std::size_t over = 0; over < n; ++over) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) d[i][j] = std::min(d[i][j], d[i][over] + d[over][j]);
    }
  }
  return d;
}

}  // namespace

/// RelaySum without messages: every rank hears the half step of a rank at distance d late by d
/// steps, and takes the mean of its own half step and all that it has heard.
Algorithm relay(const Ranks& ranks) {
  return [distances = distances_in_graph(ranks), half_steps = std::vector<Vectors>()](
             Ranks& all, Step& step) mutable {
    Vectors heard(all.size(), std::vector<double>(all.num_values()));
    for (std::size_t i = 0; i < all.size(); ++i) {
      double count = 1.0;
      for (std::size_t j = 0; j < all.size(); ++j) {
        const int late = distances[i][j];
        if (j == i || late > step.number) continue;
        const Vectors& past = half_steps[static_cast<std::size_t>(step.number - late)];
        for (std::size_t e = 0; e < heard[i].size(); ++e) heard[i][e] += past[j][e];
        count += 1.0;
      }
      for (std::size_t e = 0; e < heard[i].size(); ++e) {
        all.x[i][e] = (all.x[i][e] + heard[i][e]) / count;
      }
      // The update counts as much as one of the half steps.
      all.push_weights[static_cast<Eigen::Index>(i)] = count;
    }
    all.update(step);
    // Finds the half steps in x = (half step + heard) / count.
    Vectors half = all.x;
    for (std::size_t i = 0; i < half.size(); ++i) {
      const double count = all.push_weights[static_cast<Eigen::Index>(i)];
      for (std::size_t e = 0; e < half[i].size(); ++e) {
        half[i][e] = count * all.x[i][e] - heard[i][e];
      }
    }
    half_steps.push_back(std::move(half));
  };
}

}  // namespace gossamer::recursion

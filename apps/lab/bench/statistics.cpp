#include "apps/lab/bench/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <stdexcept>

namespace gossamer::apps {
namespace {

constexpr std::int64_t kMany = 500;

}  // namespace

double mean(const std::vector<double>& values) {
  if (values.empty()) throw std::logic_error("mean: of nothing");
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) throw std::logic_error("quantile: of nothing");
  std::ranges::sort(values);
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  const double rest = place - static_cast<double>(below);
  return values[below] + rest * (values[above] - values[below]);
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

std::pair<double, double> median_interval(std::vector<double> values) {
  if (values.empty()) throw std::logic_error("median_interval: of nothing");
  std::ranges::sort(values);
  const auto n = static_cast<std::int64_t>(values.size());
  if (n > kMany) {
    // Use the normal approximation, because the exact terms would underflow.
    const double half = static_cast<double>(n) / 2.0;
    const auto first = static_cast<std::size_t>(half - 0.98 * std::sqrt(static_cast<double>(n)));
    return {values[first], values[values.size() - 1 - first]};
  }
  // The largest k such that the chance of at most k of n values below the median is within 2.5 %.
  double chance = std::pow(0.5, static_cast<double>(n));
  double below = 0.0;
  std::int64_t k = 0;
  while (below + chance <= 0.025) {
    below += chance;
    chance *= static_cast<double>(n - k) / static_cast<double>(k + 1);
    ++k;
  }
  const auto first = static_cast<std::size_t>(std::max<std::int64_t>(k - 1, 0));
  return {values[first], values[values.size() - 1 - first]};
}

}  // namespace gossamer::apps

#pragma once
// Figures of repeated measurements.

#include <utility>
#include <vector>

namespace gossamer::apps {

/// Of a list that is not empty; the mean of the middle two for an even number.
double median(std::vector<double> values);
/// Linear between the nearest two, as numpy's default; `share` in [0, 1].
double quantile(std::vector<double> values, double share);
/// The 95 % interval of the median from order statistics of the binomial distribution, which asks
/// nothing of the distribution of the values (Hahn and Meeker, "Statistical Intervals", 1991, 5.2).
/// Smallest and largest where there are too few values (fewer than 6) for 95 %.
std::pair<double, double> median_interval(std::vector<double> values);

}  // namespace gossamer::apps

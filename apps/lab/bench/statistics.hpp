#pragma once
// Statistics of repeated measurements.

#include <utility>
#include <vector>

namespace gossamer::apps {

/// The mean of a list that must not be empty.
double mean(const std::vector<double>& values);
/// The median of a list that must not be empty; the mean of the middle two for an even number.
double median(std::vector<double> values);
/// The quantile `share`, in [0, 1]; linear between the nearest two values, as numpy's default.
double quantile(std::vector<double> values, double share);
/// The 95 % confidence interval of the median, from order statistics of the binomial distribution.
/// The method assumes nothing about the distribution of the values (Hahn and Meeker, "Statistical
/// Intervals", 1991, 5.2). Fewer than 6 values cannot give 95 %; the result is then the smallest
/// and the largest value.
std::pair<double, double> median_interval(std::vector<double> values);

}  // namespace gossamer::apps

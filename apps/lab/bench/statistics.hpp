#pragma once
// Statistics of repeated measurements. Thread safe: the functions keep no state. Every function
// throws std::logic_error for an empty list.

#include <utility>
#include <vector>

namespace gossamer::apps {

/// The arithmetic mean.
double mean(const std::vector<double>& values);
/// The middle value; the mean of the middle two where their number is even.
double median(std::vector<double> values);
/// The value below which the part `share`, 0 to 1, of the list lies. Interpolates linearly between
/// the nearest two values, as numpy does by default.
double quantile(std::vector<double> values, double share);
/// The lower and the upper end of the 95 % confidence interval of the median, from order statistics
/// of the binomial distribution. The method assumes nothing about the distribution of the values
/// (Hahn and Meeker, "Statistical Intervals", 1991, 5.2). Fewer than 6 values cannot give 95 %; the
/// result is then the smallest and the largest value.
std::pair<double, double> median_interval(std::vector<double> values);

}  // namespace gossamer::apps

#pragma once
// What virtual ranks optimise: the mean of one function per rank, whose optimum is known.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/options.hpp"

namespace gossamer::apps {

class SimulatedProblem {
 public:
  virtual ~SimulatedProblem() = default;
  /// The gradient of rank's function at x, [dim], with that step's noise. A function of its
  /// arguments and the seed alone. Thread safe.
  virtual void gradient(int rank, std::int64_t step, std::span<const double> x,
                        std::span<double> g) const = 0;
  /// The mean of all ranks' functions, [dim] -> value.
  [[nodiscard]] virtual double loss(std::span<const double> x) const = 0;
  /// Where that mean is smallest, [dim].
  [[nodiscard]] virtual const std::vector<double>& optimum() const = 0;
};

struct ProblemSize {
  int world_size = 1;
  std::int64_t dim = 1;
  std::uint64_t seed = 0;
};

std::vector<std::string> problem_names();

/// Reads `name` and the options of a problem:
/// - quadratic: f_i(x) = (x - b_i)^T A (x - b_i) / 2, A diagonal with eigenvalues from 1 to
///   1 / condition, b_i = b + heterogeneity * (standard normal numbers that sum to 0 over the
///   ranks). Gradients get noise * (standard normal numbers).
/// - logistic: logistic regression on `samples` points per rank, drawn around a centre of the
///   rank's own that lies heterogeneity * (standard normal numbers) away from 0, with labels from a
///   common plane, plus l2 |x|^2 / 2. Gradients come from a batch of `batch_size` points, 0: all.
/// Throws ConfigError.
std::unique_ptr<SimulatedProblem> make_problem(const Options& options, const ProblemSize& size);

}  // namespace gossamer::apps

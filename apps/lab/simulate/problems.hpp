#pragma once
// The problems that virtual ranks optimise. A problem is the mean of one function per rank, and its
// optimum is known.

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
  /// Writes the gradient of the rank's function at x, [dim], with the noise of that step. The
  /// result depends on the arguments and the seed alone. Thread safe.
  virtual void gradient(int rank, std::int64_t step, std::span<const double> x,
                        std::span<double> g) const = 0;
  /// The mean of all ranks' functions at x, [dim].
  [[nodiscard]] virtual double loss(std::span<const double> x) const = 0;
  /// The point where the mean is smallest, [dim].
  [[nodiscard]] virtual const std::vector<double>& optimum() const = 0;
};

struct ProblemSize {
  int world_size = 1;
  std::int64_t dim = 1;
  std::uint64_t seed = 0;
};

std::vector<std::string> problem_names();

/// Reads `name` and the options of a problem:
/// - quadratic: f_i(x) = (x - b_i)^T A (x - b_i) / 2. A is diagonal with eigenvalues from 1 to
///   1 / condition. b_i = b + heterogeneity * (standard normal numbers that sum to 0 over the
///   ranks). Gradients get noise * (standard normal numbers).
/// - logistic: logistic regression on `samples` points per rank, plus l2 |x|^2 / 2. A rank draws
///   its points around a centre of its own, which lies heterogeneity * (standard normal numbers)
///   away from 0. The labels come from a plane that all ranks share. Gradients come from a batch of
///   `batch_size` points; 0: all points.
/// Throws ConfigError.
std::unique_ptr<SimulatedProblem> make_problem(const Options& options, const ProblemSize& size);

}  // namespace gossamer::apps

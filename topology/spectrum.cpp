#include "topology/spectrum.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include <Eigen/Eigenvalues>
#include <Spectra/GenEigsSolver.h>
#include <Spectra/SymEigsSolver.h>

#include "base/random.hpp"
#include "topology/mixing.hpp"
#include "topology/push_sum.hpp"

namespace gossamer {
namespace {

// Rounding leaves about 1e-16 per product; what lies below these is meant to be 0.
constexpr double kExactTolerance = 1e-12;
constexpr double kSuddenDrop = 1e-6;
constexpr double kSymmetryTolerance = 1e-14;
// Up to these, dense eigenvalue solvers take milliseconds.
constexpr int kDenseEigenvalues = 128;
constexpr int kDenseNorms = 64;
// The basis of an iteration is some 100 to 256 vectors.
constexpr int kMostKrylov = 1 << 16;
// Ranks times rounds that are kept as operators (4 bytes and more each).
constexpr std::int64_t kMostRankRounds = std::int64_t{1} << 26;
// Ranks times rounds that one norm may go through; it does so some 40 times.
constexpr std::int64_t kMostRankRoundsOfNorm = std::int64_t{1} << 20;
// With fewer, nothing can be said about the rest.
constexpr std::int64_t kLeastRoundsOfNorm = 64;

/// M(k) as sparse operators; rounds are made when they are first needed and, within a period, kept.
class RoundSequence {
 public:
  RoundSequence(const Topology& topology, int world_size)
      : topology_(topology), world_size_(world_size), push_sum_(world_size) {}

  [[nodiscard]] int world_size() const { return world_size_; }

  const MixingOperator& at(std::int64_t k) {
    // De-biased rounds do not repeat, plain ones do.
    const auto period = topology_.period();
    if (period && !topology_.directed()) k %= *period;
    while (static_cast<std::int64_t>(operators_.size()) <= k) {
      operators_.emplace_back(next_round(topology_, std::ssize(operators_), push_sum_));
    }
    return operators_[static_cast<std::size_t>(k)];
  }

  /// x <- (M(k) - J) x, for x whose columns sum to zero: J x = 0.
  void apply(std::int64_t num_rounds, RankRows& x) {
    for (std::int64_t k = 0; k < num_rounds; ++k) at(k).apply(x);
  }
  /// x <- (M(k) - J)^T x. Rows of M sum to one, so (M - J)^T x = M^T (x - J x) = M^T x - J x.
  void apply_transposed(std::int64_t num_rounds, RankRows& x) {
    for (std::int64_t k = num_rounds - 1; k >= 0; --k) at(k).apply_transposed(x);
  }

 private:
  const Topology& topology_;
  int world_size_;
  PushSum push_sum_;
  std::vector<MixingOperator> operators_;
};

void subtract_mean(RankRows& x) { x.rowwise() -= x.colwise().mean().eval(); }

/// Random columns of length 1, each with the mean 0 (of one rank: zeros).
RankRows random_columns(int num_rows, int num_columns) {
  Random random(1);
  RankRows x(num_rows, num_columns);
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    for (Eigen::Index j = 0; j < x.cols(); ++j) x(i, j) = random.normal();
  }
  subtract_mean(x);
  for (Eigen::Index j = 0; j < x.cols(); ++j) {
    const double norm = x.col(j).norm();
    if (norm > 0.0) x.col(j) /= norm;
  }
  return x;
}

bool affordable(const Topology& topology, int world_size) {
  const auto period = topology.period();
  return period && *period <= kMostRankRounds / world_size;
}

template <class Solver>
void require_success(const Solver& solver) {
  if (solver.info() != Eigen::Success) {
    throw std::runtime_error("The eigenvalues of a mixing matrix could not be computed.");
  }
}

double dense_spectral_radius(const Eigen::MatrixXd& matrix) {
  // The symmetric solver is exact to rounding; the general one loses half the digits at defective
  // eigenvalues.
  if ((matrix - matrix.transpose()).cwiseAbs().maxCoeff() < kSymmetryTolerance) {
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(matrix, Eigen::EigenvaluesOnly);
    require_success(solver);
    return solver.eigenvalues().cwiseAbs().maxCoeff();
  }
  const Eigen::EigenSolver<Eigen::MatrixXd> solver(matrix, /*computeEigenvectors=*/false);
  require_success(solver);
  return solver.eigenvalues().cwiseAbs().maxCoeff();
}

/// What Spectra's solvers take: y = operation(x).
template <class Operation>
class VectorOperator {
 public:
  using Scalar = double;
  VectorOperator(Eigen::Index size, Operation operation)
      : size_(size), operation_(std::move(operation)) {}

  // NOLINTBEGIN(readability-identifier-naming): Spectra's names.
  [[nodiscard]] Eigen::Index rows() const { return size_; }
  [[nodiscard]] Eigen::Index cols() const { return size_; }
  void perform_op(const double* in, double* out) const {
    RankRows x = Eigen::Map<const Eigen::VectorXd>(in, size_);
    operation_(x);
    Eigen::Map<Eigen::VectorXd>(out, size_) = x;
  }
  // NOLINTEND(readability-identifier-naming)

 private:
  Eigen::Index size_;
  Operation operation_;
};

/// The largest modulus of an eigenvalue of y = operation(x), to 1e-9; nothing when the iteration
/// does not get there.
template <class Operation>
std::optional<double> krylov_spectral_radius(int size, Operation operation) {
  // Eigenvalues of circles and stars stand close together; looking for several at once, in a basis
  // that grows with their number, is what finds the largest of them reliably.
  constexpr int kWanted = 16;
  constexpr int kMostRestarts = 200;
  constexpr double kTolerance = 1e-9;
  const int basis = std::clamp(static_cast<int>(4.0 * std::sqrt(size)), 100, 256);
  VectorOperator op(size, std::move(operation));
  Spectra::GenEigsSolver solver(op, kWanted, basis);
  solver.init(RankRows(random_columns(size, 1)).data());
  solver.compute(Spectra::SortRule::LargestMagn, kMostRestarts, kTolerance);
  const auto values = solver.eigenvalues();
  if (values.size() == 0) return std::nullopt;
  return values.cwiseAbs().maxCoeff();
}

/// ||M(k) - J||_2 from the largest eigenvalue of (M - J)^T (M - J).
double norm_after(RoundSequence& rounds, std::int64_t num_rounds) {
  const int n = rounds.world_size();
  if (n == 1) return 0.0;
  if (n <= kDenseNorms) {
    RankRows product = RankRows::Identity(n, n);
    rounds.apply(num_rounds, product);
    const Eigen::MatrixXd rest = product.array() - 1.0 / n;
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(rest.transpose() * rest,
                                                                Eigen::EigenvaluesOnly);
    require_success(solver);
    return std::sqrt(std::max(0.0, solver.eigenvalues().maxCoeff()));
  }
  const auto squared = [&rounds, num_rounds](RankRows& x) {
    subtract_mean(x);
    rounds.apply(num_rounds, x);
    subtract_mean(x);
    rounds.apply_transposed(num_rounds, x);
    subtract_mean(x);
  };
  RankRows probe = random_columns(n, 1);
  squared(probe);
  if (probe.norm() < kExactTolerance * kExactTolerance) return 0.0;
  constexpr int kBasis = 12;
  constexpr int kMostRestarts = 30;
  constexpr double kTolerance = 1e-6;
  VectorOperator op(n, squared);
  Spectra::SymEigsSolver solver(op, 1, kBasis);
  solver.init(RankRows(random_columns(n, 1)).data());
  solver.compute(Spectra::SortRule::LargestAlge, kMostRestarts, kTolerance);
  // Close eigenvalues may leave the last digits open; the largest Ritz value is good enough then.
  if (solver.eigenvalues().size() > 0) return std::sqrt(std::max(0.0, solver.eigenvalues()[0]));
  RankRows x = random_columns(n, 1);
  double eigenvalue = 0.0;
  for (int turn = 0; turn < kMostRestarts; ++turn) {
    squared(x);
    eigenvalue = x.norm();
    if (eigenvalue == 0.0) break;
    x /= eigenvalue;
  }
  return std::sqrt(eigenvalue);
}

/// The smallest k in (low, high] whose norm is at most `factor`; norm(high) is, norm(low) is not.
std::int64_t find_crossing(RoundSequence& rounds, std::int64_t low, std::int64_t high,
                           double factor) {
  double at_low = low == 0 ? 1.0 : norm_after(rounds, low);
  double at_high = norm_after(rounds, high);
  // Norms fall about geometrically, so the logarithm tells where to look; every other look halves.
  for (bool halve = false; high - low > 1; halve = !halve) {
    std::int64_t middle = low + (high - low) / 2;
    if (!halve && at_high > 0.0 && at_high < at_low) {
      const double part = std::log(at_low / factor) / std::log(at_low / at_high);
      const auto ahead = static_cast<std::int64_t>(part * static_cast<double>(high - low));
      middle = std::clamp(low + ahead, low + 1, high - 1);
    }
    const double norm = norm_after(rounds, middle);
    (norm <= factor ? high : low) = middle;
    (norm <= factor ? at_high : at_low) = norm;
  }
  return high;
}

}  // namespace

std::optional<double> spectral_gap(const Topology& topology, int world_size) {
  if (!affordable(topology, world_size)) return std::nullopt;
  const std::int64_t period = *topology.period();
  std::vector<MixingOperator> rounds;
  for (std::int64_t k = 0; k < period; ++k) {
    const Round round = topology.round(k);
    check_round(round, world_size, topology.directed());
    rounds.emplace_back(round);
  }
  const auto apply = [&rounds](RankRows& x) {
    for (const MixingOperator& round : rounds) round.apply(x);
  };
  RankRows probe = random_columns(world_size, 2);
  apply(probe);
  if (probe.cwiseAbs().maxCoeff() < kExactTolerance) return 1.0;
  double radius = 0.0;
  if (world_size <= kDenseEigenvalues) {
    RankRows product = RankRows::Identity(world_size, world_size);
    apply(product);
    radius = dense_spectral_radius(product.array() - 1.0 / world_size);
  } else {
    if (world_size > kMostKrylov) return std::nullopt;
    const auto found = krylov_spectral_radius(world_size, [&apply](RankRows& x) {
      subtract_mean(x);
      apply(x);
    });
    if (!found) return std::nullopt;
    radius = *found;
  }
  return radius < kExactTolerance ? 1.0 : 1.0 - radius;
}

std::optional<std::int64_t> exact_after(const Topology& topology, int world_size,
                                        std::int64_t max_rounds) {
  if (world_size == 1) return 1;
  RoundSequence rounds(topology, world_size);
  // A product averages exactly if it does so with a few random vectors: that it maps these to
  // their mean by chance has probability 0.
  RankRows x = random_columns(world_size, 3);
  const std::int64_t most = std::min(max_rounds, kMostRankRounds / 2 / world_size);
  const std::int64_t last = std::min(most, topology.period().value_or(most));
  double before = x.cwiseAbs().maxCoeff();
  const double tolerance = kExactTolerance * before;
  for (std::int64_t k = 1; k <= last; ++k) {
    rounds.at(k - 1).apply(x);
    const double after = x.cwiseAbs().maxCoeff();
    // What only converges gets below any tolerance at last, but little by little.
    if (after <= tolerance && after <= kSuddenDrop * before) return k;
    before = after;
  }
  return std::nullopt;
}

double distance_factor(const Topology& topology, int world_size, std::int64_t num_rounds) {
  RoundSequence rounds(topology, world_size);
  return norm_after(rounds, num_rounds);
}

namespace {

/// rounds_to() for a known gap.
std::optional<RoundCount> count_rounds(const Topology& topology, int world_size, double factor,
                                       const std::optional<double>& gap) {
  const std::int64_t most = kMostRankRoundsOfNorm / world_size;
  if (most < kLeastRoundsOfNorm) {
    // Too many ranks for norms; only what is exact is known then, and it may be smaller still.
    const auto exact = exact_after(topology, world_size);
    if (!exact) return std::nullopt;
    return RoundCount{*exact, true};
  }
  RoundSequence rounds(topology, world_size);
  std::int64_t low = 0;
  std::int64_t high = 1;
  double norm = norm_after(rounds, high);
  while (norm > factor && high < most) {
    low = high;
    high = std::min(2 * high, most);
    norm = norm_after(rounds, high);
  }
  if (norm <= factor) return RoundCount{find_crossing(rounds, low, high, factor), false};
  if (!gap || *gap <= kExactTolerance || *gap >= 1.0) return std::nullopt;
  const double per_round = std::log1p(-*gap) / static_cast<double>(*topology.period());
  const double more = std::ceil(std::log(factor / norm) / per_round);
  return RoundCount{high + static_cast<std::int64_t>(more), true};
}

std::optional<double> rate_of(const Topology& topology, int world_size,
                              const std::optional<double>& gap,
                              const std::optional<RoundCount>& count) {
  if (topology.period()) {
    if (!gap) return std::nullopt;
    return std::pow(1.0 - *gap, 1.0 / static_cast<double>(*topology.period()));
  }
  if (!count || count->estimated) return std::nullopt;
  const double norm = distance_factor(topology, world_size, count->rounds);
  return std::pow(norm, 1.0 / static_cast<double>(count->rounds));
}

}  // namespace

std::optional<RoundCount> rounds_to(const Topology& topology, int world_size, double factor) {
  return count_rounds(topology, world_size, factor, spectral_gap(topology, world_size));
}

ConsensusSpeed consensus_speed(const Topology& topology, int world_size) {
  ConsensusSpeed speed;
  speed.spectral_gap = spectral_gap(topology, world_size);
  speed.exact_after = exact_after(topology, world_size);
  speed.rounds_to_thousandth = count_rounds(topology, world_size, 1e-3, speed.spectral_gap);
  speed.consensus_rate =
      rate_of(topology, world_size, speed.spectral_gap, speed.rounds_to_thousandth);
  return speed;
}

}  // namespace gossamer

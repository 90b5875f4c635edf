#include "apps/lab/simulate/problems.hpp"

#include <array>
#include <cmath>
#include <string_view>

#include <Eigen/Dense>

#include "apps/lab/simulate/simulation_options.hpp"
#include "base/error.hpp"
#include "base/random.hpp"
#include "base/registry.hpp"

namespace gossamer::apps {
namespace {

// Streams of random numbers: one for the problem, then one per rank, then one per rank and step.
constexpr std::uint64_t kProblemStream = 1;
constexpr std::uint64_t kRankStream = 1'000;
constexpr std::uint64_t kStepStream = std::uint64_t{1} << 40;

Random step_random(const ProblemSize& size, int rank, std::int64_t step) {
  const auto number =
      static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(size.world_size) +
      static_cast<std::uint64_t>(rank);
  return Random(size.seed, kStepStream + number);
}

Random rank_random(const ProblemSize& size, int rank) {
  return Random(size.seed, kRankStream + static_cast<std::uint64_t>(rank));
}

class Quadratic final : public SimulatedProblem {
 public:
  Quadratic(const Options& options, const ProblemSize& size)
      : size_(size), noise_(options.read(simulate_options::kNoise)) {
    const double condition = options.read(simulate_options::kCondition);
    const double heterogeneity = options.read(simulate_options::kHeterogeneity);
    const auto dim = static_cast<std::size_t>(size.dim);
    Random random(size.seed, kProblemStream);
    for (std::size_t d = 0; d < dim; ++d) {
      const double part = dim == 1 ? 0.0 : static_cast<double>(d) / static_cast<double>(dim - 1);
      curvature_.push_back(std::pow(condition, -part));
      optimum_.push_back(random.normal());
    }
    draw_centres(heterogeneity);
  }

  void gradient(int rank, std::int64_t step, std::span<const double> x,
                std::span<double> g) const override {
    const double* centre = centres_.data() + static_cast<std::ptrdiff_t>(rank * size_.dim);
    for (std::size_t d = 0; d < x.size(); ++d) g[d] = curvature_[d] * (x[d] - centre[d]);
    if (noise_ == 0.0) return;
    Random random = step_random(size_, rank, step);
    for (double& value : g) value += noise_ * random.normal();
  }

  [[nodiscard]] double loss(std::span<const double> x) const override {
    double loss = least_;
    for (std::size_t d = 0; d < x.size(); ++d) {
      const double away = x[d] - optimum_[d];
      loss += 0.5 * curvature_[d] * away * away;
    }
    return loss;
  }

  [[nodiscard]] const std::vector<double>& optimum() const override { return optimum_; }

 private:
  void draw_centres(double heterogeneity) {
    const auto dim = optimum_.size();
    std::vector<double> mean(dim);
    for (int rank = 0; rank < size_.world_size; ++rank) {
      Random random = rank_random(size_, rank);
      for (std::size_t d = 0; d < dim; ++d) {
        centres_.push_back(heterogeneity * random.normal());
        mean[d] += centres_.back() / size_.world_size;
      }
    }
    for (std::size_t i = 0; i < centres_.size(); ++i) {
      const std::size_t d = i % dim;
      centres_[i] += optimum_[d] - mean[d];
      const double away = centres_[i] - optimum_[d];
      least_ += 0.5 * curvature_[d] * away * away / size_.world_size;
    }
  }

  ProblemSize size_;
  double noise_;
  std::vector<double> curvature_;
  std::vector<double> optimum_;
  /// [world_size, dim]
  std::vector<double> centres_;
  double least_ = 0.0;
};

/// log(1 + exp(t)) without overflow.
double softplus(double t) {
  return t > 0.0 ? t + std::log1p(std::exp(-t)) : std::log1p(std::exp(t));
}

double sigmoid(double t) { return 1.0 / (1.0 + std::exp(-t)); }

class Logistic final : public SimulatedProblem {
 public:
  Logistic(const Options& options, const ProblemSize& size)
      : size_(size),
        samples_(options.read(simulate_options::kSamples)),
        batch_(options.read(simulate_options::kBatchSize)),
        l2_(options.read(simulate_options::kL2)) {
    const double heterogeneity = options.read(simulate_options::kHeterogeneity);
    if (size.dim > kMostDim) {
      options.fail("name", concat("logistic looks for its optimum with a matrix of dim x dim, and ",
                                  "dim is ", size.dim, ", allowed: up to ", kMostDim));
    }
    draw(heterogeneity);
    optimum_ = find_optimum();
  }

  void gradient(int rank, std::int64_t step, std::span<const double> x,
                std::span<double> g) const override {
    for (std::size_t d = 0; d < x.size(); ++d) g[d] = l2_ * x[d];
    const std::int64_t first = rank * samples_;
    if (batch_ == 0 || batch_ >= samples_) {
      for (std::int64_t s = 0; s < samples_; ++s) {
        add_gradient(first + s, 1.0 / static_cast<double>(samples_), x, g);
      }
      return;
    }
    Random random = step_random(size_, rank, step);
    for (std::int64_t b = 0; b < batch_; ++b) {
      add_gradient(first + random.below(samples_), 1.0 / static_cast<double>(batch_), x, g);
    }
  }

  [[nodiscard]] double loss(std::span<const double> x) const override {
    double loss = 0.0;
    for (std::int64_t s = 0; s < num_points(); ++s) {
      const double margin = labels_[static_cast<std::size_t>(s)] * product(s, x);
      loss += softplus(-margin) / static_cast<double>(num_points());
    }
    for (const double value : x) loss += 0.5 * l2_ * value * value;
    return loss;
  }

  [[nodiscard]] const std::vector<double>& optimum() const override { return optimum_; }

 private:
  static constexpr std::int64_t kMostDim = 1'000;

  [[nodiscard]] std::int64_t num_points() const { return size_.world_size * samples_; }

  void draw(double heterogeneity) {
    Random common(size_.seed, kProblemStream);
    std::vector<double> plane;
    for (std::int64_t d = 0; d < size_.dim; ++d) plane.push_back(common.normal());
    for (int rank = 0; rank < size_.world_size; ++rank) {
      Random random = rank_random(size_, rank);
      std::vector<double> centre;
      for (std::int64_t d = 0; d < size_.dim; ++d) {
        centre.push_back(heterogeneity * random.normal());
      }
      for (std::int64_t s = 0; s < samples_; ++s) {
        double above = 0.0;
        for (std::size_t d = 0; d < centre.size(); ++d) {
          points_.push_back(centre[d] + random.normal());
          above += points_.back() * plane[d];
        }
        labels_.push_back(random.uniform() < sigmoid(above) ? 1.0 : -1.0);
      }
    }
  }

  [[nodiscard]] double product(std::int64_t sample, std::span<const double> x) const {
    const double* point = points_.data() + static_cast<std::ptrdiff_t>(sample * size_.dim);
    double sum = 0.0;
    for (std::size_t d = 0; d < x.size(); ++d) sum += point[d] * x[d];
    return sum;
  }

  void add_gradient(std::int64_t sample, double weight, std::span<const double> x,
                    std::span<double> g) const {
    const double label = labels_[static_cast<std::size_t>(sample)];
    const double slope = -label * sigmoid(-label * product(sample, x)) * weight;
    const double* point = points_.data() + static_cast<std::ptrdiff_t>(sample * size_.dim);
    for (std::size_t d = 0; d < g.size(); ++d) g[d] += slope * point[d];
  }

  /// Finds the optimum with Newton's method; the l2 term makes the loss strongly convex.
  [[nodiscard]] std::vector<double> find_optimum() const {
    const auto dim = static_cast<Eigen::Index>(size_.dim);
    Eigen::VectorXd x = Eigen::VectorXd::Zero(dim);
    constexpr int kMostSteps = 50;
    constexpr double kTolerance = 1e-12;
    for (int step = 0; step < kMostSteps; ++step) {
      Eigen::VectorXd slope = l2_ * x;
      Eigen::MatrixXd curvature = l2_ * Eigen::MatrixXd::Identity(dim, dim);
      for (std::int64_t s = 0; s < num_points(); ++s) {
        const Eigen::Map<const Eigen::VectorXd> point(points_.data() + s * size_.dim, dim);
        const double label = labels_[static_cast<std::size_t>(s)];
        const double miss = sigmoid(-label * point.dot(x));
        const double share = 1.0 / static_cast<double>(num_points());
        slope -= share * label * miss * point;
        curvature.selfadjointView<Eigen::Lower>().rankUpdate(point, share * miss * (1.0 - miss));
      }
      if (slope.norm() < kTolerance) break;
      x -= curvature.selfadjointView<Eigen::Lower>().ldlt().solve(slope);
    }
    return {x.begin(), x.end()};
  }

  ProblemSize size_;
  std::int64_t samples_;
  std::int64_t batch_;
  double l2_;
  /// [world_size * samples, dim]
  std::vector<double> points_;
  std::vector<double> labels_;
  std::vector<double> optimum_;
};

struct ProblemEntry {
  std::string_view name;
  std::unique_ptr<SimulatedProblem> (*make)(const Options&, const ProblemSize&);
};

template <class Problem>
std::unique_ptr<SimulatedProblem> make(const Options& options, const ProblemSize& size) {
  return std::make_unique<Problem>(options, size);
}

constexpr std::array kTable = {
    ProblemEntry{"quadratic", make<Quadratic>},
    ProblemEntry{"logistic", make<Logistic>},
};

}  // namespace

std::vector<std::string> problem_names() { return names_of(kTable); }

std::unique_ptr<SimulatedProblem> make_problem(const Options& options, const ProblemSize& size) {
  const std::string name = options.read(simulate_options::kProblem);
  return row_of(kTable, "problem", name).make(options, size);
}

}  // namespace gossamer::apps

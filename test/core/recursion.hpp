#pragma once
// Solves a small problem for many ranks twice: with Pipelines over the threads backend, and with
// the recursion x(t+1) = W(t-1) x(t) - update(gradients of x(t)) in double with whole matrices.

#include "test/core/ranks.hpp"
#include "test/core/test_device.hpp"
#include "test/core/toy_model.hpp"
#include "test/optim/reference.hpp"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "optim/registry.hpp"
#include "topology/mixing.hpp"

namespace gossamer {

struct Problem {
  Where where = Where::kHost;
  int num_ranks = 2;
  int node_size = 0;
  std::string algorithm = "gossip";
  /// The options of the algorithm, as YAML.
  std::string algorithm_options = {};
  std::shared_ptr<const Topology> topology = {};
  reference::Rule rule = {.type = "sgd", .momentum = 0.9};
  double lr = 0.05;
  double weight_decay = 0.02;
  DType dtype = DType::kFloat64;
  std::vector<std::int64_t> sizes = {7, 1, 40, 0, 33, 5};
  std::int64_t bucket_bytes = 256;
  int num_steps = 12;
  /// All ranks start from rank 0's values instead of their own.
  bool same_start = false;
  /// Each rank offers its gradients in an order of its own.
  bool shuffles = true;
  GradientOptions gradients = {};
  double gradient_scale = 1.0;
  /// Gradients are rounded to bfloat16, whatever type the model has.
  bool rounds_gradients = false;
  int num_threads = 1;
  /// True if a rank's gradients hold a NaN in a step.
  std::function<bool(int rank, int step)> breaks = [](int, int) { return false; };
  /// True if a rank has a gradient for a parameter in a step.
  std::function<bool(int rank, int step, std::int64_t parameter)> present =
      [](int, int, std::int64_t) { return true; };

  [[nodiscard]] std::size_t num_values() const {
    std::int64_t sum = 0;
    for (const std::int64_t size : sizes) sum += size;
    return static_cast<std::size_t>(sum);
  }
};

/// Parameters after every step, per rank: trajectory[step][rank].
using Trajectory = std::vector<std::vector<std::vector<double>>>;

inline Trajectory empty_trajectory(const Problem& problem) {
  return Trajectory(static_cast<std::size_t>(problem.num_steps),
                    std::vector<std::vector<double>>(static_cast<std::size_t>(problem.num_ranks)));
}

inline std::vector<double> start_of(const Problem& problem, int rank) {
  Random random(3, problem.same_start ? 0 : static_cast<std::uint64_t>(rank));
  std::vector<double> x(problem.num_values());
  // Exact in float32.
  for (double& value : x)
    value = static_cast<double>(static_cast<float>(random.uniform(-1.0, 1.0)));
  return x;
}

/// Every rank has a quadratic with its own centre that moves a little from step to step.
inline std::vector<double> gradient_at(const std::vector<double>& x, int rank, int step) {
  std::vector<double> gradient(x.size());
  for (std::size_t e = 0; e < x.size(); ++e) {
    const auto place = static_cast<double>(e);
    const double curvature = 0.6 + 0.4 * std::cos(place);
    const double centre = std::sin(1.0 + 3.0 * rank + 0.7 * place) + 0.2 * std::cos(2.0 * step);
    gradient[e] = curvature * (x[e] - centre);
  }
  return gradient;
}

class FixedSchedule : public Schedule {
 public:
  explicit FixedSchedule(double lr) : lr_(lr) {}
  /// Falls slowly, so that a schedule read at the wrong step is noticed.
  [[nodiscard]] double lr(std::int64_t completed_steps) const override {
    return lr_ / (1.0 + 0.1 * static_cast<double>(completed_steps));
  }

 private:
  double lr_;
};

inline Pipeline::Config config_of(const Problem& problem) {
  return {.algorithm = {problem.algorithm, Options::parse(problem.algorithm_options)},
          .topology = problem.topology,
          .optimizer = make_optimizer(problem.rule.type, Options::parse(problem.rule.yaml())),
          .schedule = std::make_shared<FixedSchedule>(problem.lr),
          .gradients = problem.gradients,
          .num_threads = problem.num_threads};
}

inline ToyModel model_of(const Problem& problem, Communicator& communicator,
                         Pipeline::Config config) {
  auto infos = parameters_of_sizes(problem.sizes, problem.dtype, problem.weight_decay);
  const BucketPlan plan = plan_buckets(infos, declared_order(infos.size()), problem.bucket_bytes);
  return {communicator, std::move(config), std::move(infos), plan,
          start_of(problem, communicator.rank())};
}

inline ToyModel model_of(const Problem& problem, Communicator& communicator) {
  return model_of(problem, communicator, config_of(problem));
}

/// `device`: as TestDevice.
template <class AnyDevice>
ToyModel model_on(const Problem& problem, AnyDevice& device) {
  Pipeline::Config config = config_of(problem);
  config.stream = device.stream();
  return model_of(problem, device.communicator(), std::move(config));
}

/// One step of one rank: computes the rank's gradients as work on the stream, then calls
/// finish_step().
inline void train_step(const Problem& problem, ToyModel& model, int rank, int step) {
  std::vector<std::int64_t> order = declared_order(problem.sizes.size());
  if (problem.shuffles) {
    Random random(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(step));
    random.shuffle(std::span(order));
  }
  const auto gradient = std::make_shared<std::vector<double>>();
  model.stream().run([&problem, &model, gradient, rank, step] {
    *gradient = gradient_at(model.values_now(), rank, step);
    if (problem.rounds_gradients) {
      for (double& g : *gradient) {
        g = static_cast<double>(widened(rounded_to_bfloat16(static_cast<float>(g))));
      }
    }
    if (problem.breaks(rank, step)) gradient->back() = std::numeric_limits<double>::quiet_NaN();
  });
  model.pipeline().set_gradient_scale(problem.gradient_scale);
  for (const std::int64_t parameter : order) {
    if (problem.present(rank, step, parameter)) model.offer(parameter, gradient);
  }
  model.pipeline().finish_step();
}

/// `make_device(communicator)`: a rank's device, as TestDevice.
template <class MakeDevice>
Trajectory run_pipeline_on(const Problem& problem, const MakeDevice& make_device) {
  Trajectory trajectory = empty_trajectory(problem);
  run_ranks(
      problem.num_ranks,
      [&](Communicator& communicator, const World& world) {
        auto device = make_device(communicator);
        ToyModel model = model_on(problem, device);
        for (int step = 0; step < problem.num_steps; ++step) {
          train_step(problem, model, world.rank, step);
          auto& values =
              trajectory[static_cast<std::size_t>(step)][static_cast<std::size_t>(world.rank)];
          model.stream().run([&model, &values] { values = model.values_now(); });
        }
        model.pipeline().drain();
      },
      problem.node_size);
  return trajectory;
}

inline Trajectory run_pipeline(const Problem& problem) {
  FakeNcclHub hub;
  return run_pipeline_on(problem, [&problem, &hub](Communicator& communicator) {
    return TestDevice(problem.where, communicator, hub);
  });
}

/// Solves the problem in double, all ranks at once. Written from the recursions in the opening
/// comments of the algorithms' files. Shares no code with the library except the topologies and the
/// reading of options.
class Recursion {
 public:
  explicit Recursion(const Problem& problem)
      : problem_(problem),
        options_(Options::parse(problem.algorithm_options)),
        bucket_of_(problem.sizes.size()),
        last_norm_(static_cast<std::size_t>(problem.num_ranks), -1.0),
        push_weights_(Eigen::VectorXd::Ones(problem.num_ranks)),
        num_updates_(static_cast<std::size_t>(problem.num_ranks)) {
    const auto infos = parameters_of_sizes(problem.sizes, problem.dtype);
    const BucketPlan plan = plan_buckets(infos, declared_order(infos.size()), problem.bucket_bytes);
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      for (const BucketEntry& entry : plan.buckets[b].entries) {
        bucket_of_[static_cast<std::size_t>(entry.parameter)] = b;
      }
    }
    for (int rank = 0; rank < problem.num_ranks; ++rank) {
      x_.push_back(start_of(problem, rank));
      zeros_.emplace_back(problem.num_values());
      auto& optimizers = optimizers_.emplace_back();
      for (const std::int64_t size : problem.sizes) {
        optimizers.emplace_back(problem.rule, static_cast<std::size_t>(size));
      }
    }
  }

  Trajectory run() {
    Trajectory trajectory;
    y_ = last_gradient_ = momentum_ = zeros_;
    anchor_ = x_;
    for (int step = 0; step < problem_.num_steps; ++step) {
      advance(step);
      trajectory.push_back(x_);
    }
    return trajectory;
  }

 private:
  using Vectors = std::vector<std::vector<double>>;

  /// gradients[rank][parameter]; empty: there is none.
  using Gradients = std::vector<std::vector<std::vector<double>>>;

  void advance(int step) {
    Gradients gradients = own_gradients(step);
    std::vector<bool> skips(gradients.size());
    for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
      skips[rank] = problem_.breaks(static_cast<int>(rank), step);
    }
    if (problem_.algorithm == "allreduce") reduce(gradients, skips);
    before_ = x_;
    const bool tracks = problem_.algorithm == "gradient_tracking";
    if ((tracks || problem_.algorithm == "gossip") && step > 0) {
      if (tracks) y_ = mixed(step - 1, y_);
      x_ = mixed(step - 1, x_);
      push_weights_ = mixing(step - 1) * push_weights_;
    }
    if (problem_.algorithm == "outer") {
      move_anchor(step);
      // The rules see the moved model alone.
      before_ = x_;
    }
    const bool any = std::ranges::count(skips, true) > 0;
    for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
      const bool alone = problem_.algorithm == "local";
      if (alone ? skips[rank] : any) continue;
      clip(rank, gradients[rank]);
      if (tracks) track(rank, gradients[rank]);
      update(rank, gradients[rank]);
    }
  }

  /// Replaces the gradients by sums or means over the ranks; of the step before, if the options say
  /// so.
  void reduce(Gradients& gradients, std::vector<bool>& skips) {
    average(gradients);
    if (!options_.flag("average", true)) {
      for (auto& parts : gradients) {
        for (auto& part : parts) {
          for (double& g : part) g *= problem_.num_ranks;
        }
      }
    }
    if (options_.integer("delay", {.fallback = 0}) == 0) return;
    Gradients none(gradients.size(), std::vector<std::vector<double>>(problem_.sizes.size()));
    if (late_gradients_.empty()) {
      late_gradients_ = std::move(none);
      late_skips_.assign(skips.size(), false);
    }
    std::swap(late_gradients_, gradients);
    std::swap(late_skips_, skips);
  }

  /// y <- (y mixed) + g - (g of the last step that counted). The update uses y as the gradient.
  void track(std::size_t rank, std::vector<std::vector<double>>& parts) {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i].resize(static_cast<std::size_t>(problem_.sizes[i]));
      for (std::size_t e = 0; e < parts[i].size(); ++e) {
        double& old = last_gradient_[rank][begin + e];
        double& y = y_[rank][begin + e];
        y += parts[i][e] - old;
        old = parts[i][e];
        parts[i][e] = y;
      }
      begin += parts[i].size();
    }
  }

  /// Moves the anchor by SlowMo or DiLoCo, with the models after `step` steps.
  void move_anchor(int step) {
    const std::int64_t every = options_.integer("every", {.fallback = 8});
    if (step == 0 || step % every != 0) return;
    const bool slow = options_.text("kind", "slowmo") == "slowmo";
    const double lr = options_.number("lr", {.fallback = slow ? 1.0 : 0.7});
    const double momentum = options_.number("momentum", {.fallback = slow ? 0.5 : 0.9});
    const double inner =
        FixedSchedule(problem_.lr).lr(std::max<std::int64_t>(0, num_updates_.front() - 1));
    std::vector<double> mean(problem_.num_values());
    for (const auto& x : x_) {
      for (std::size_t e = 0; e < mean.size(); ++e) mean[e] += x[e] / problem_.num_ranks;
    }
    for (std::size_t rank = 0; rank < x_.size(); ++rank) {
      for (std::size_t e = 0; e < mean.size(); ++e) {
        double& a = anchor_[rank][e];
        double& m = momentum_[rank][e];
        const double difference = a - mean[e];
        m = momentum * m + (slow ? difference / inner : difference);
        a -= slow ? lr * inner * m : lr * (difference + momentum * m);
        x_[rank][e] = a;
      }
    }
  }

  [[nodiscard]] Gradients own_gradients(int step) const {
    Gradients gradients;
    for (int rank = 0; rank < problem_.num_ranks; ++rank) {
      const auto all = gradient_at(x_[static_cast<std::size_t>(rank)], rank, step);
      auto& parts = gradients.emplace_back();
      auto begin = all.begin();
      for (std::size_t i = 0; i < problem_.sizes.size(); ++i) {
        const auto end = begin + problem_.sizes[i];
        parts.emplace_back();
        if (problem_.present(rank, step, static_cast<std::int64_t>(i))) {
          for (auto at = begin; at != end; ++at) {
            parts.back().push_back(*at * problem_.gradient_scale);
          }
        }
        begin = end;
      }
    }
    return gradients;
  }

  /// Gives every rank the mean over all ranks. A missing gradient counts as one of zeros.
  void average(Gradients& gradients) const {
    for (std::size_t i = 0; i < problem_.sizes.size(); ++i) {
      std::vector<double> mean;
      for (const auto& parts : gradients) {
        if (parts[i].empty()) continue;
        mean.resize(parts[i].size());
        for (std::size_t e = 0; e < mean.size(); ++e) mean[e] += parts[i][e] / problem_.num_ranks;
      }
      for (auto& parts : gradients) parts[i] = mean;
    }
  }

  /// Clips one rank's gradients by the definition of each mode.
  void clip(std::size_t rank, std::vector<std::vector<double>>& parts) {
    if (problem_.gradients.clip_mode == ClipMode::kNone) return;
    const bool per_bucket = problem_.gradients.clip_mode == ClipMode::kPerBucket;
    std::vector<double> squares(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (const double g : parts[i]) squares[per_bucket ? bucket_of_[i] : 0] += g * g;
    }
    double norm = std::sqrt(squares[0]);
    if (problem_.gradients.clip_mode == ClipMode::kDelayedGlobal) {
      std::swap(norm, last_norm_[rank]);
      if (norm < 0.0) norm = last_norm_[rank];
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (per_bucket) norm = std::sqrt(squares[bucket_of_[i]]);
      for (double& g : parts[i]) g *= std::min(1.0, problem_.gradients.clip_norm / (norm + 1e-6));
    }
  }

  void update(std::size_t rank, const std::vector<std::vector<double>>& parts) {
    const double lr = FixedSchedule(problem_.lr).lr(num_updates_[rank]++) /
                      push_weights_[static_cast<Eigen::Index>(rank)];
    std::size_t begin = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::size_t end = begin + static_cast<std::size_t>(problem_.sizes[i]);
      if (begin < end) apply(rank, i, {begin, end}, parts[i], lr);
      begin = end;
    }
  }

  [[nodiscard]] Eigen::MatrixXd mixing(std::int64_t k) const {
    const Topology& topology = *problem_.topology;
    return mixing_matrix(topology.round(k), problem_.num_ranks, topology.directed());
  }

  /// Mixes values. In directed topologies x_ holds z = x / s, with s x <- A (s x) and s <- A s
  /// (push-sum). Otherwise s stays 1.
  [[nodiscard]] Vectors mixed(std::int64_t k, const Vectors& values) const {
    const auto n = static_cast<std::size_t>(problem_.num_ranks);
    const Eigen::MatrixXd w = mixing(k);
    const Eigen::VectorXd after = w * push_weights_;
    Vectors result(n, std::vector<double>(problem_.num_values()));
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        const auto row = static_cast<Eigen::Index>(i);
        const auto column = static_cast<Eigen::Index>(j);
        const double weight = w(row, column) * push_weights_[column] / after[row];
        for (std::size_t e = 0; e < result[i].size(); ++e) result[i][e] += weight * values[j][e];
      }
    }
    return result;
  }

  /// A step of one parameter, whose elements are [range.first, range.second). An empty gradient:
  /// there is none.
  void apply(std::size_t rank, std::size_t parameter, std::pair<std::size_t, std::size_t> range,
             const std::vector<double>& gradient, double lr) {
    const auto part = [range](std::vector<double>& all) {
      return std::span(all).subspan(range.first, range.second - range.first);
    };
    const auto copy = [](std::span<double> values) {
      return std::vector<double>(values.begin(), values.end());
    };
    std::vector<double> p = copy(part(x_[rank]));
    const std::vector<double> before = copy(part(before_[rank]));
    reference::Optimizer& optimizer = optimizers_[rank][parameter];
    if (gradient.empty()) {
      optimizer.rest(p, before);
    } else {
      optimizer.step(p, gradient, lr, problem_.weight_decay, before);
    }
    std::ranges::copy(p, part(x_[rank]).begin());
  }

  Problem problem_;
  Options options_;
  std::vector<std::size_t> bucket_of_;
  /// One norm per rank; negative: there has been no step.
  std::vector<double> last_norm_;
  Eigen::VectorXd push_weights_;
  std::vector<std::int64_t> num_updates_;
  Vectors x_;
  /// The parameters before mixing.
  Vectors before_;
  Vectors zeros_;
  /// Gradient tracking.
  Vectors y_;
  Vectors last_gradient_;
  /// The outer optimizer.
  Vectors anchor_;
  Vectors momentum_;
  /// All-reduce one step late.
  Gradients late_gradients_;
  std::vector<bool> late_skips_;
  std::vector<std::vector<reference::Optimizer>> optimizers_;
};

/// The largest difference between two trajectories; infinite if a value is NaN.
inline double largest_difference(const Trajectory& a, const Trajectory& b) {
  double largest = 0.0;
  for (std::size_t step = 0; step < b.size(); ++step) {
    for (std::size_t rank = 0; rank < b[step].size(); ++rank) {
      if (a[step][rank].size() != b[step][rank].size()) return HUGE_VAL;
      for (std::size_t e = 0; e < b[step][rank].size(); ++e) {
        const double difference = std::abs(a[step][rank][e] - b[step][rank][e]);
        if (!(difference <= largest)) largest = std::isnan(difference) ? HUGE_VAL : difference;
      }
    }
  }
  return largest;
}

}  // namespace gossamer

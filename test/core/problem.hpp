#pragma once
// A small problem for many ranks, solved by Pipelines over the threads backend.

#include "test/core/ranks.hpp"
#include "test/core/test_device.hpp"
#include "test/core/toy_model.hpp"
#include "test/optim/reference.hpp"

#include <algorithm>
#include <array>
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
#include "topology/topology.hpp"

namespace gossamer {

struct Problem {
  Where where = Where::kHost;
  int num_ranks = 2;
  int node_size = 0;
  std::string algorithm = "gossip";
  /// The options of the algorithm, as YAML.
  std::string algorithm_options = {};
  std::shared_ptr<const Topology> topology = {};
  std::string codec = "fp32";
  /// As in ExchangeOptions.
  bool shares_memory = true;
  reference::Rule rule = {.type = "sgd", .momentum = 0.9};
  /// The test applies the rule, which is gradient descent without momentum, in place of the
  /// optimizer.
  bool has_external_optimizer = false;
  bool rule_sees_whole_step = false;
  double lr = 0.05;
  double weight_decay = 0.02;
  DType dtype = DType::kFloat64;
  std::vector<std::int64_t> sizes = {7, 1, 40, 0, 33, 5};
  std::int64_t bucket_bytes = 256;
  /// As in Pipeline::Config: with these sizes two groups of two buckets.
  std::int64_t group_bytes = 700;
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

/// For Problem::present: each rank lacks one gradient of `count`, another one in every step.
inline auto one_is_missing_of(int count) {
  return [count](int rank, int step, std::int64_t parameter) {
    return (rank + 2 * step + 3 * static_cast<int>(parameter)) % count != 0;
  };
}

/// The same for one of four, and in every third step no rank has a gradient for parameter 1.
inline bool some_are_missing(int rank, int step, std::int64_t parameter) {
  return !(parameter == 1 && step % 3 == 0) && one_is_missing_of(4)(rank, step, parameter);
}

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

/// Every rank has a quadratic with its own centre that moves a little from step to step. Elements
/// at a distance of kRepeat have the same.
inline std::vector<double> gradient_at(const std::vector<double>& x, int rank, int step) {
  constexpr std::size_t kRepeat = 1009;
  const double shift = 0.2 * std::cos(2.0 * step);
  std::array<double, kRepeat> curvature{};
  std::array<double, kRepeat> centre{};
  for (std::size_t e = 0; e < std::min(x.size(), kRepeat); ++e) {
    const auto place = static_cast<double>(e);
    curvature[e] = 0.6 + 0.4 * std::cos(place);
    centre[e] = std::sin(1.0 + 3.0 * rank + 0.7 * place) + shift;
  }
  std::vector<double> gradient(x.size());
  for (std::size_t e = 0; e < x.size(); ++e) {
    gradient[e] = curvature[e % kRepeat] * (x[e] - centre[e % kRepeat]);
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

/// x <- x - lr * (factor * g + weight_decay * x), with the arithmetic of the optimizer `sgd`.
template <class T, class G>
void descend(const ExternalStep& step, double weight_decay) {
  for (const Segment& segment : step.segments) {
    if (segment.gradient.data == nullptr) continue;
    const Block part = part_of(step.parameters, segment.offset, segment.numel);
    const auto x = part.as<T>();
    const auto g = segment.gradient.as<G>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const T gradient = static_cast<T>(step.decision.factor) * static_cast<T>(widened(g[i]));
      x[i] -= static_cast<T>(step.lr) * (gradient + static_cast<T>(weight_decay) * x[i]);
    }
  }
}

inline void descend_any(const ExternalStep& step, double weight_decay) {
  if (step.decision.apply == 0) return;
  if (step.parameters.dtype == DType::kFloat64) return descend<double, double>(step, weight_decay);
  const bool narrow = std::ranges::any_of(step.segments, [](const Segment& segment) {
    return segment.gradient.data != nullptr && segment.gradient.dtype == DType::kBFloat16;
  });
  if (narrow) return descend<float, BFloat16>(step, weight_decay);
  descend<float, float>(step, weight_decay);
}

inline Pipeline::Config config_of(const Problem& problem) {
  if (problem.has_external_optimizer) {
    Problem other = problem;
    other.has_external_optimizer = false;
    Pipeline::Config config = config_of(other);
    config.optimizer = nullptr;
    config.external_optimizer = [decay =
                                     problem.weight_decay](std::span<const ExternalStep> steps) {
      for (const ExternalStep& step : steps) descend_any(step, decay);
    };
    config.rule_sees_whole_step = problem.rule_sees_whole_step;
    return config;
  }
  return {.exchange = {.algorithm = {problem.algorithm, Options::parse(problem.algorithm_options)},
                       .topology = problem.topology,
                       .codec = find_codec(problem.codec),
                       .shares_memory = problem.shares_memory},
          .optimizer = make_optimizer(problem.rule.type, Options::parse(problem.rule.yaml())),
          .schedule = std::make_shared<FixedSchedule>(problem.lr),
          .gradients = problem.gradients,
          .num_threads = problem.num_threads,
          .group_bytes = problem.group_bytes};
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
  model.fetch();
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
          model.fetch();
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

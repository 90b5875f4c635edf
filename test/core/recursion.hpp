#pragma once
// The oracle of all tests of training: solves a Problem with the recursion
// x(t+1) = W(t-1) x(t) - update(gradients of x(t)) in double with whole matrices.

#include "test/core/problem.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "topology/mixing.hpp"

namespace gossamer {

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

}  // namespace gossamer

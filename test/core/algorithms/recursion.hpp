#pragma once
// The oracle of all tests of training: the recursion of each algorithm, in double with whole
// matrices, all ranks at once. Written from the opening comments of the algorithms' files. Shares
// no code with the library except the topologies and the reading of options.

#include "test/core/algorithms/coded_mixing.hpp"
#include "test/core/algorithms/outer_recursion.hpp"
#include "test/core/largest_elements.hpp"
#include "test/optim/reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/options.hpp"
#include "core/bucket/gradient_policy.hpp"
#include "topology/mixing.hpp"
#include "topology/topology.hpp"

namespace gossamer {

class Recursion {
 public:
  /// vectors[rank]: all parameters of a rank, one after the other.
  using Vectors = std::vector<std::vector<double>>;
  /// Gradients of one rank, per parameter; an empty one is missing.
  using Gradients = std::vector<std::vector<double>>;

  struct Parameter {
    std::int64_t numel = 0;
    double weight_decay = 0.0;
    double lr_factor = 1.0;
    /// Not set: that of the setup.
    std::optional<reference::Rule> rule = {};
    /// Index of the parameter's bucket.
    std::size_t bucket = 0;
  };
  struct Setup {
    std::string algorithm = {};
    /// The options of the algorithm, as YAML.
    std::string algorithm_options = {};
    std::shared_ptr<const Topology> topology = {};
    /// fp32: blocks are sent as they are.
    std::string codec = "fp32";
    reference::Rule rule = {};
    /// The learning rate after a number of updates.
    std::function<double(std::int64_t num_updates)> lr = {};
    GradientOptions clipping = {};
    std::vector<Parameter> parameters = {};
    /// The initial parameters.
    Vectors start = {};
    /// The rank that encodes a value of a sum.
    std::function<std::size_t(std::size_t value)> owner = {};
    std::function<Gradients(const std::vector<double>& x, int rank, int step)> gradients = {};
    /// True if a rank's gradients hold a NaN in a step.
    std::function<bool(int rank, int step)> breaks = [](int, int) { return false; };
  };

  explicit Recursion(Setup setup)
      : setup_(std::move(setup)),
        options_(Options::parse(setup_.algorithm_options)),
        last_norm_(setup_.start.size(), -1.0),
        push_weights_(Eigen::VectorXd::Ones(num_ranks())),
        num_updates_(setup_.start.size()),
        x_(setup_.start),
        y_(setup_.start.size(), std::vector<double>(setup_.start.front().size())),
        tracked_(y_),
        public_(y_),
        outer_({.options = options_,
                .codec = setup_.codec,
                .start = setup_.start,
                .mixed = [this](std::int64_t k, const Vectors& values) { return mixed(k, values); },
                .owner = setup_.owner,
                .buckets = buckets_of(setup_.parameters)}),
        heard_(y_) {
    for (std::size_t rank = 0; rank < setup_.start.size(); ++rank) {
      auto& optimizers = optimizers_.emplace_back();
      for (const Parameter& parameter : setup_.parameters) {
        optimizers.emplace_back(parameter.rule.value_or(setup_.rule),
                                static_cast<std::size_t>(parameter.numel));
      }
    }
  }

  /// Makes one step, and returns the parameters after it.
  const Vectors& advance() {
    make_step(num_steps_++);
    return x_;
  }

 private:
  /// gradients[rank][parameter]
  using AllGradients = std::vector<Gradients>;

  [[nodiscard]] Eigen::Index num_ranks() const { return std::ssize(setup_.start); }
  [[nodiscard]] std::size_t num_values() const { return setup_.start.front().size(); }

  /// The bucket of each value.
  static std::vector<std::size_t> buckets_of(const std::vector<Parameter>& parameters) {
    std::vector<std::size_t> buckets;
    for (const Parameter& parameter : parameters) {
      buckets.insert(buckets.end(), static_cast<std::size_t>(parameter.numel), parameter.bucket);
    }
    return buckets;
  }

  void make_step(int step) {
    AllGradients gradients;
    std::vector<bool> skips;
    for (std::size_t rank = 0; rank < x_.size(); ++rank) {
      gradients.push_back(setup_.gradients(x_[rank], static_cast<int>(rank), step));
      skips.push_back(setup_.breaks(static_cast<int>(rank), step));
    }
    const bool warms_up =
        step < options_.read(IntegerOption{.name = "warmup", .rule = {.fallback = 0}});
    if (setup_.algorithm == "allreduce" || warms_up) reduce(gradients, skips);
    const bool in_nodes = setup_.algorithm == "node_gossip";
    if (in_nodes) reduce_in_nodes(gradients);
    before_ = x_;
    const bool tracks =
        setup_.algorithm == "gradient_tracking" || setup_.algorithm == "momentum_tracking";
    if ((tracks || in_nodes || setup_.algorithm == "gossip") && step > 0) {
      if (tracks) y_ = mixed(step - 1, y_);
      x_ = mixed(step - 1, x_);
      push_weights_ = mixing(step - 1) * push_weights_;
    }
    if (setup_.algorithm == "gossip" || setup_.algorithm == "outer") share_moments(step);
    if (setup_.algorithm == "choco" && step > 0) mix_public_copies(step - 1);
    if (setup_.algorithm == "outer") {
      receive_average(step);
      // The rules see the moved model alone.
      before_ = x_;
    }
    if (setup_.algorithm == "relay") hear_half_steps(step);
    if (setup_.algorithm == "late_average") add_late_average(step);
    const bool any = std::ranges::count(skips, true) > 0;
    for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
      const bool alone = setup_.algorithm == "local";
      if (alone ? skips[rank] : any) continue;
      clip(rank, gradients[rank]);
      if (tracks) track(rank, gradients[rank]);
      update(rank, gradients[rank]);
    }
    if (setup_.algorithm == "relay") keep_half_steps();
    past_.push_back(x_);
  }

  /// Gives every rank the mean over the ranks of its node.
  void reduce_in_nodes(AllGradients& gradients) const {
    const auto size = static_cast<std::size_t>(setup_.topology->round(0).node_size);
    if (size == 1) return;
    for (std::size_t first = 0; first < gradients.size(); first += size) {
      for (std::size_t i = 0; i < setup_.parameters.size(); ++i) {
        std::vector<double> mean;
        for (std::size_t rank = first; rank < first + size; ++rank) {
          const std::vector<double>& part = gradients[rank][i];
          mean.resize(std::max(mean.size(), part.size()));
          for (std::size_t e = 0; e < part.size(); ++e) {
            mean[e] += part[e] / static_cast<double>(size);
          }
        }
        for (std::size_t rank = first; rank < first + size; ++rank) gradients[rank][i] = mean;
      }
    }
  }

  /// x <- x + (mean s - s); s are the parameters of the step that has begun the average.
  void add_late_average(int step) {
    const std::int64_t began =
        step - options_.read(IntegerOption{.name = "late", .rule = {.fallback = 1}});
    if (began < options_.read(IntegerOption{.name = "warmup", .rule = {.fallback = 0}})) return;
    if ((began + 1) % options_.read(IntegerOption{.name = "every", .rule = {.fallback = 8}}) != 0)
      return;
    const Vectors& snapshots = past_[static_cast<std::size_t>(began)];
    for (std::size_t e = 0; e < num_values(); ++e) {
      double mean = 0.0;
      for (const auto& s : snapshots) mean += s[e] / static_cast<double>(num_ranks());
      for (std::size_t rank = 0; rank < x_.size(); ++rank) x_[rank][e] += mean - snapshots[rank][e];
    }
  }

  /// RelaySum without messages: every rank hears the half step of a rank at distance d late by d
  /// steps, and takes the mean of its own half step and all that it has heard.
  void hear_half_steps(int step) {
    const std::vector<std::vector<int>> distances = distances_in_graph();
    for (std::size_t i = 0; i < x_.size(); ++i) {
      heard_[i].assign(num_values(), 0.0);
      double count = 1.0;
      for (std::size_t j = 0; j < x_.size(); ++j) {
        const int late = distances[i][j];
        if (j == i || late > step) continue;
        const Vectors& past = half_steps_[static_cast<std::size_t>(step - late)];
        for (std::size_t e = 0; e < num_values(); ++e) heard_[i][e] += past[j][e];
        count += 1.0;
      }
      for (std::size_t e = 0; e < num_values(); ++e) x_[i][e] = (x_[i][e] + heard_[i][e]) / count;
      // The update counts as much as one of the half steps.
      push_weights_[static_cast<Eigen::Index>(i)] = count;
    }
  }
  /// Finds the half steps in x' = (half step + heard) / count.
  void keep_half_steps() {
    Vectors half = x_;
    for (std::size_t i = 0; i < half.size(); ++i) {
      for (std::size_t e = 0; e < num_values(); ++e) {
        half[i][e] = push_weights_[static_cast<Eigen::Index>(i)] * x_[i][e] - heard_[i][e];
      }
    }
    half_steps_.push_back(std::move(half));
  }
  /// Edges between each two ranks.
  [[nodiscard]] std::vector<std::vector<int>> distances_in_graph() const {
    const Eigen::MatrixXd w = mixing(0);
    const std::size_t n = x_.size();
    std::vector<std::vector<int>> d(n, std::vector<int>(n));
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        const bool joined = w(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(j)) > 0.0;
        d[i][j] = i == j ? 0 : joined ? 1 : static_cast<int>(n);
      }
    }
    for (std::size_t over = 0; over < n; ++over) {
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) d[i][j] = std::min(d[i][j], d[i][over] + d[over][j]);
      }
    }
    return d;
  }

  /// Replaces the gradients by sums or means over the ranks; of the step before, if the options say
  /// so.
  void reduce(AllGradients& gradients, std::vector<bool>& skips) {
    average(gradients);
    if (!options_.read(FlagOption{.name = "average", .rule = {.fallback = true}})) {
      for (auto& parts : gradients) {
        for (auto& part : parts) {
          for (double& g : part) g *= static_cast<double>(num_ranks());
        }
      }
    }
    if (options_.read(IntegerOption{.name = "delay", .rule = {.fallback = 0}}) == 0) return;
    AllGradients none(gradients.size(), Gradients(setup_.parameters.size()));
    if (late_gradients_.empty()) {
      late_gradients_ = std::move(none);
      late_skips_.assign(skips.size(), false);
    }
    std::swap(late_gradients_, gradients);
    std::swap(late_skips_, skips);
  }

  /// y <- (y mixed) + u' - u with u' = beta u + g, where u is that of the last step that counted.
  /// The update uses y as the gradient. For gradient tracking, beta is 0.
  void track(std::size_t rank, std::vector<std::vector<double>>& parts) {
    const bool is_momentum = setup_.algorithm == "momentum_tracking";
    const double beta =
        is_momentum ? options_.read(NumberOption{.name = "beta", .rule = {.fallback = 0.9}}) : 0.0;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i].resize(static_cast<std::size_t>(setup_.parameters[i].numel));
      for (std::size_t e = 0; e < parts[i].size(); ++e) {
        double& u = tracked_[rank][begin + e];
        double& y = y_[rank][begin + e];
        const double before = u;
        u = beta * u + parts[i][e];
        y += u - before;
        parts[i][e] = y;
      }
      begin += parts[i].size();
    }
  }

  /// Ranks take means of their moments, if the options say so: all ranks after `step` steps; under
  /// `outer` those that average models, where periods count the averages of each bucket.
  void share_moments(int step) {
    if (step == 0) return;
    const bool is_outer = setup_.algorithm == "outer";
    const std::int64_t cycle = is_outer ? outer_.every() : 1;
    const std::int64_t every =
        options_.read(IntegerOption{.name = "share_moments", .rule = {.fallback = 0}}) / cycle;
    const std::int64_t momentum =
        options_.read(IntegerOption{.name = "share_momentum", .rule = {.fallback = 0}}) / cycle;
    std::size_t value = 0;
    for (std::size_t i = 0; i < setup_.parameters.size(); ++i) {
      const auto numel = static_cast<std::size_t>(setup_.parameters[i].numel);
      if (numel == 0) continue;
      const std::int64_t steps = step + (is_outer ? outer_.turn_of(value) : 0);
      value += numel;
      if (steps % cycle != 0) continue;
      const std::int64_t count = steps / cycle;
      const bool is_young = count < every && (count == 1 || count == 2 || count == 4 || count == 8);
      if (every > 0 && (count % every == 0 || is_young)) {
        share(i, count - 1, [](reference::Optimizer& one) -> std::vector<double>& {
          return one.second_moments();
        });
      }
      if (momentum == 0 || count % momentum != 0) continue;
      // Over second moments of a rank's own nobody shares first ones.
      share(i, count - 1, [every](reference::Optimizer& one) -> std::vector<double>& {
        return every > 0 || !one.has_second_moments() ? one.momentum() : one.unshared;
      });
    }
  }

  /// Means of a state of one parameter. `round`: of the topology, if the ranks meet in it.
  template <class StateOf>
  void share(std::size_t parameter, std::int64_t round, const StateOf& state_of) {
    Vectors states;
    for (auto& optimizers : optimizers_) states.push_back(state_of(optimizers[parameter]));
    const bool meets_in_rounds = setup_.algorithm == "outer" && outer_.follows_topology();
    const Vectors means = meets_in_rounds ? mixed_plainly(round, states)
                                          : Vectors(states.size(), OuterRecursion::mean_of(states));
    for (std::size_t rank = 0; rank < means.size(); ++rank) {
      state_of(optimizers_[rank][parameter]) = means[rank];
    }
  }

  /// CHOCO: h <- h + (the largest elements of x - h), x <- x + gamma (W h - h).
  void mix_public_copies(int k) {
    const double fraction =
        options_.read(NumberOption{.name = "fraction", .rule = {.fallback = 0.05}});
    const double gamma = options_.read(NumberOption{
        .name = "consensus_step", .rule = {.fallback = std::min(2.0 * fraction, 0.5)}});
    for (std::size_t rank = 0; rank < x_.size(); ++rank) {
      std::vector<double> q = x_[rank];
      for (std::size_t e = 0; e < q.size(); ++e) q[e] -= public_[rank][e];
      std::size_t begin = 0;
      for (const Parameter& parameter : setup_.parameters) {
        const std::size_t end = begin + static_cast<std::size_t>(parameter.numel);
        keep_largest(q, begin, end, fraction);
        begin = end;
      }
      for (std::size_t e = 0; e < q.size(); ++e) public_[rank][e] += q[e];
    }
    const Vectors mixed_copies = mixed(k, public_);
    for (std::size_t rank = 0; rank < x_.size(); ++rank) {
      for (std::size_t e = 0; e < x_[rank].size(); ++e) {
        x_[rank][e] += gamma * (mixed_copies[rank][e] - public_[rank][e]);
      }
    }
  }

  /// The average of `outer` that arrives in a step.
  void receive_average(int step) {
    const std::int64_t began = step - outer_.late();
    if (began < 0) return;
    const double lr = setup_.lr(std::max<std::int64_t>(0, num_updates_.front() - outer_.late()));
    outer_.move(began, past_[static_cast<std::size_t>(began)], lr, x_);
  }

  /// Gives every rank the mean over all ranks. A missing gradient counts as one of zeros. A codec
  /// rounds what the ranks send, and their sum.
  void average(AllGradients& gradients) const {
    const bool rounds = setup_.codec != "fp32" && num_ranks() > 1;
    const auto sent = [&](const std::vector<double>& x) {
      return rounds ? CodedMixing(setup_.codec).sent(x) : x;
    };
    for (std::size_t i = 0; i < setup_.parameters.size(); ++i) {
      std::vector<double> sum;
      for (const auto& parts : gradients) {
        if (parts[i].empty()) continue;
        sum.resize(parts[i].size());
        const std::vector<double> heard = sent(parts[i]);
        for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += heard[e];
      }
      sum = sent(sum);
      for (double& value : sum) value /= static_cast<double>(num_ranks());
      for (auto& parts : gradients) parts[i] = sum;
    }
  }

  /// Clips one rank's gradients by the definition of each mode.
  void clip(std::size_t rank, std::vector<std::vector<double>>& parts) {
    if (setup_.clipping.clip_mode == ClipMode::kNone) return;
    const bool per_bucket = setup_.clipping.clip_mode == ClipMode::kPerBucket;
    std::vector<double> squares(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (const double g : parts[i])
        squares[per_bucket ? setup_.parameters[i].bucket : 0] += g * g;
    }
    double norm = std::sqrt(squares[0]);
    if (setup_.clipping.clip_mode == ClipMode::kDelayedGlobal) {
      std::swap(norm, last_norm_[rank]);
      if (norm < 0.0) norm = last_norm_[rank];
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (per_bucket) norm = std::sqrt(squares[setup_.parameters[i].bucket]);
      for (double& g : parts[i]) g *= std::min(1.0, setup_.clipping.clip_norm / (norm + 1e-6));
    }
  }

  void update(std::size_t rank, const std::vector<std::vector<double>>& parts) {
    const double lr =
        setup_.lr(num_updates_[rank]++) / push_weights_[static_cast<Eigen::Index>(rank)];
    std::size_t begin = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::size_t end = begin + static_cast<std::size_t>(setup_.parameters[i].numel);
      if (begin < end) {
        apply(rank, i, {begin, end}, parts[i], lr * setup_.parameters[i].lr_factor);
      }
      begin = end;
    }
  }

  [[nodiscard]] Eigen::MatrixXd mixing(std::int64_t k) const {
    const Topology& topology = *setup_.topology;
    return mixing_matrix(topology.round(k), static_cast<int>(num_ranks()), topology.directed());
  }

  /// Mixes values. In directed topologies x_ holds z = x / s, with s x <- A (s x) and s <- A s
  /// (push-sum). Otherwise s stays 1.
  [[nodiscard]] Vectors mixed(std::int64_t k, const Vectors& values) const {
    if (setup_.codec != "fp32") {
      return CodedMixing(setup_.codec).mixed(setup_.topology->round(k), values);
    }
    return mixed_plainly(k, values);
  }

  [[nodiscard]] Vectors mixed_plainly(std::int64_t k, const Vectors& values) const {
    const std::size_t n = x_.size();
    const Eigen::MatrixXd w = mixing(k);
    const Eigen::VectorXd after = w * push_weights_;
    Vectors result(n, std::vector<double>(values.front().size()));
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
      optimizer.step(p, gradient, lr, setup_.parameters[parameter].weight_decay, before);
    }
    std::ranges::copy(p, part(x_[rank]).begin());
  }

  Setup setup_;
  Options options_;
  int num_steps_ = 0;
  /// One norm per rank; negative: there has been no step.
  std::vector<double> last_norm_;
  Eigen::VectorXd push_weights_;
  std::vector<std::int64_t> num_updates_;
  Vectors x_;
  /// The parameters before mixing.
  Vectors before_;
  /// Tracking.
  Vectors y_;
  Vectors tracked_;
  /// CHOCO.
  Vectors public_;
  OuterRecursion outer_;
  /// RelaySum: what the ranks have heard in this step, and the half steps of all steps.
  Vectors heard_;
  std::vector<Vectors> half_steps_;
  /// The parameters after every step.
  std::vector<Vectors> past_;
  /// All-reduce one step late.
  AllGradients late_gradients_;
  std::vector<bool> late_skips_;
  std::vector<std::vector<reference::Optimizer>> optimizers_;
};

}  // namespace gossamer

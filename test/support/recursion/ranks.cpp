#include "test/support/recursion/ranks.hpp"

#include "test/support/mixing_matrix.hpp"
#include "test/support/recursion/coded_mixing.hpp"

#include <algorithm>
#include <cmath>
#include <span>

namespace gossamer::recursion {

std::vector<double> mean_of(const Vectors& values) {
  std::vector<double> mean(values.front().size());
  for (const std::vector<double>& of_rank : values) {
    for (std::size_t e = 0; e < mean.size(); ++e) {
      mean[e] += of_rank[e] / static_cast<double>(values.size());
    }
  }
  return mean;
}

Ranks::Ranks(Setup given)
    : setup(std::move(given)),
      options(Options::parse(setup.algorithm_options)),
      x(setup.start),
      before(setup.start),
      push_weights(Eigen::VectorXd::Ones(std::ssize(setup.start))),
      num_updates(setup.start.size()),
      last_norm_(setup.start.size(), -1.0) {
  for (std::size_t rank = 0; rank < size(); ++rank) {
    auto& own = optimizers.emplace_back();
    for (const Parameter& parameter : setup.parameters) {
      own.emplace_back(parameter.rule.value_or(setup.rule),
                       static_cast<std::size_t>(parameter.numel));
    }
  }
}

Eigen::MatrixXd Ranks::mixing(std::int64_t k) const {
  const Topology& topology = *setup.topology;
  return mixing_matrix(topology.round(k), static_cast<int>(size()), topology.directed());
}

Vectors Ranks::mixed(std::int64_t k, const Vectors& values) const {
  if (setup.codec == "fp32") return mixed_plainly(k, values);
  return CodedMixing(setup.codec).mixed(setup.topology->round(k), values);
}

Vectors Ranks::mixed_plainly(std::int64_t k, const Vectors& values) const {
  const Eigen::MatrixXd w = mixing(k);
  const Eigen::VectorXd after = w * push_weights;
  Vectors result(size(), std::vector<double>(values.front().size()));
  for (std::size_t i = 0; i < size(); ++i) {
    for (std::size_t j = 0; j < size(); ++j) {
      const auto row = static_cast<Eigen::Index>(i);
      const auto column = static_cast<Eigen::Index>(j);
      const double weight = w(row, column) * push_weights[column] / after[row];
      for (std::size_t e = 0; e < result[i].size(); ++e) result[i][e] += weight * values[j][e];
    }
  }
  return result;
}

void Ranks::mix(std::int64_t k) {
  x = mixed(k, x);
  push_weights = mixing(k) * push_weights;
}

void Ranks::average(std::vector<Gradients>& gradients) const {
  const bool rounds = setup.codec != "fp32" && size() > 1;
  const auto sent = [&](const std::vector<double>& values) {
    return rounds ? CodedMixing(setup.codec).sent(values) : values;
  };
  for (std::size_t i = 0; i < setup.parameters.size(); ++i) {
    std::vector<double> sum;
    for (const Gradients& parts : gradients) {
      if (parts[i].empty()) continue;
      sum.resize(parts[i].size());
      const std::vector<double> heard = sent(parts[i]);
      for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += heard[e];
    }
    sum = sent(sum);
    for (double& value : sum) value /= static_cast<double>(size());
    for (Gradients& parts : gradients) parts[i] = sum;
  }
}

void Ranks::clip(std::size_t rank, Gradients& parts) {
  if (setup.clipping.clip_mode == ClipMode::kNone) return;
  const bool per_bucket = setup.clipping.clip_mode == ClipMode::kPerBucket;
  std::vector<double> squares(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (const double g : parts[i]) squares[per_bucket ? setup.parameters[i].bucket : 0] += g * g;
  }
  double norm = std::sqrt(squares[0]);
  if (setup.clipping.clip_mode == ClipMode::kDelayedGlobal) {
    std::swap(norm, last_norm_[rank]);
    if (norm < 0.0) norm = last_norm_[rank];
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (per_bucket) norm = std::sqrt(squares[setup.parameters[i].bucket]);
    for (double& g : parts[i]) g *= std::min(1.0, setup.clipping.clip_norm / (norm + 1e-6));
  }
}

void Ranks::apply(std::size_t rank, const Gradients& parts) {
  const double lr = setup.lr(num_updates[rank]++) / push_weights[static_cast<Eigen::Index>(rank)];
  std::size_t begin = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t end = begin + static_cast<std::size_t>(setup.parameters[i].numel);
    if (begin < end) {
      apply_rule(rank, i, {begin, end}, parts[i], lr * setup.parameters[i].lr_factor);
    }
    begin = end;
  }
}

void Ranks::update(Step& step,
                   const std::function<void(std::size_t rank, Gradients& parts)>& change) {
  if (std::ranges::count(step.skips, true) > 0) return;
  for (std::size_t rank = 0; rank < size(); ++rank) {
    clip(rank, step.gradients[rank]);
    change(rank, step.gradients[rank]);
    apply(rank, step.gradients[rank]);
  }
}

void Ranks::apply_rule(std::size_t rank, std::size_t parameter,
                       std::pair<std::size_t, std::size_t> range,
                       const std::vector<double>& gradient, double lr) {
  const auto part = [range](std::vector<double>& all) {
    return std::span(all).subspan(range.first, range.second - range.first);
  };
  const auto copy = [](std::span<double> values) {
    return std::vector<double>(values.begin(), values.end());
  };
  std::vector<double> p = copy(part(x[rank]));
  const std::vector<double> p_before = copy(part(before[rank]));
  reference::Optimizer& optimizer = optimizers[rank][parameter];
  if (gradient.empty()) {
    optimizer.rest(p, p_before);
  } else {
    optimizer.step(p, gradient, lr, setup.parameters[parameter].weight_decay, p_before);
  }
  std::ranges::copy(p, part(x[rank]).begin());
}

}  // namespace gossamer::recursion

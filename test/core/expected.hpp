#pragma once
// What the oracle computes for a Problem.

#include "test/core/problem.hpp"
#include "test/core/recursion.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace gossamer {

/// The gradients of a rank, as train_step() offers them.
inline Recursion::Gradients gradients_of(const Problem& problem, const std::vector<double>& x,
                                         int rank, int step) {
  const std::vector<double> all = gradient_at(x, rank, step);
  Recursion::Gradients parts(problem.sizes.size());
  auto begin = all.begin();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto end = begin + problem.sizes[i];
    if (problem.present(rank, step, static_cast<std::int64_t>(i))) parts[i].assign(begin, end);
    for (double& g : parts[i]) g *= problem.gradient_scale;
    begin = end;
  }
  return parts;
}

inline Trajectory expected_trajectory(const Problem& problem) {
  Recursion::Setup setup{
      .algorithm = problem.algorithm,
      .algorithm_options = problem.algorithm_options,
      .topology = problem.topology,
      .codec = problem.codec,
      .rule = problem.rule,
      .lr = [lr = problem.lr](std::int64_t updates) { return FixedSchedule(lr).lr(updates); },
      .clipping = problem.gradients,
      .gradients = [&problem](const std::vector<double>& x, int rank,
                              int step) { return gradients_of(problem, x, rank, step); },
      .breaks = problem.breaks};
  for (const std::int64_t size : problem.sizes) {
    setup.parameters.push_back({.numel = size, .weight_decay = problem.weight_decay});
  }
  const auto infos = parameters_of_sizes(problem.sizes, problem.dtype);
  const BucketPlan plan = plan_buckets(infos, declared_order(infos.size()), problem.bucket_bytes);
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    for (const BucketEntry& entry : plan.buckets[b].entries) {
      setup.parameters[static_cast<std::size_t>(entry.parameter)].bucket = b;
    }
  }
  for (int rank = 0; rank < problem.num_ranks; ++rank) {
    setup.start.push_back(start_of(problem, rank));
  }
  Recursion recursion(std::move(setup));
  Trajectory trajectory;
  for (int step = 0; step < problem.num_steps; ++step) trajectory.push_back(recursion.advance());
  return trajectory;
}

}  // namespace gossamer

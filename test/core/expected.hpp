#pragma once
// What the oracle computes for a Problem.

#include "test/core/problem.hpp"
#include "test/support/recursion/recursion.hpp"

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
  std::vector<std::vector<std::size_t>> owners(problem.sizes.size());
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const std::int64_t shard = (plan.buckets[b].numel + problem.num_ranks - 1) / problem.num_ranks;
    for (const BucketEntry& entry : plan.buckets[b].entries) {
      const auto parameter = static_cast<std::size_t>(entry.parameter);
      setup.parameters[parameter].bucket = b;
      for (std::int64_t e = 0; e < problem.sizes[parameter]; ++e) {
        owners[parameter].push_back(static_cast<std::size_t>((entry.offset + e) / shard));
      }
    }
  }
  std::vector<std::size_t> owner_of_value;
  for (const auto& part : owners)
    owner_of_value.insert(owner_of_value.end(), part.begin(), part.end());
  setup.owner = [owner_of_value](std::size_t value) { return owner_of_value[value]; };
  for (int rank = 0; rank < problem.num_ranks; ++rank) {
    setup.start.push_back(start_of(problem, rank));
  }
  Recursion recursion(std::move(setup));
  Trajectory trajectory;
  for (int step = 0; step < problem.num_steps; ++step) trajectory.push_back(recursion.advance());
  return trajectory;
}

}  // namespace gossamer

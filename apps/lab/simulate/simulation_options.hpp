#pragma once
// The options of simulations and of their problems.

#include <cstdint>

#include "apps/lab/simulate/problems.hpp"
#include "base/option.hpp"

namespace gossamer::apps::simulate_options {

inline constexpr ChoiceOption kKind{
    "kind",
    "consensus: ranks mix what they have; sgd: they minimise a problem",
    {.words = {"consensus", "sgd"}, .fallback = "consensus"}};
inline constexpr IntegerOption kWorldSize{
    "world_size", "number of ranks", {.min = 1, .max = std::int64_t{1} << 20}};
inline constexpr IntegerOption kLocalWorldSize{
    "local_world_size", "ranks on each node; 0: all", {.fallback = 0, .min = 0}};
inline constexpr IntegerOption kRounds{
    "rounds", "rounds of mixing", {.fallback = 1000, .min = 1, .max = 100'000'000}};
inline constexpr IntegerOption kDim{
    "dim", "numbers that a rank has", {.fallback = 64, .min = 1, .max = std::int64_t{1} << 30}};
inline constexpr IntegerOption kSeed{
    "seed", "all random numbers follow from it", {.fallback = 0, .min = 0}};
inline constexpr NumberOption kLr{"lr", "learning rate", {.fallback = 0.05, .min = 0.0}};
inline constexpr NumberOption kWeightDecay{
    "weight_decay", "as the optimizer takes it", {.fallback = 0.0, .min = 0.0}};

inline constexpr ChoiceOption kProblem{
    "name", "what the ranks minimise", {.fallback = "quadratic", .names = problem_names}};
inline constexpr NumberOption kNoise{
    "noise", "standard deviation of the gradients", {.fallback = 0.1, .min = 0.0}};
inline constexpr NumberOption kCondition{
    "condition", "the largest curvature over the smallest", {.fallback = 10.0, .min = 1.0}};
inline constexpr NumberOption kHeterogeneity{
    "heterogeneity", "how far the ranks' optima are apart", {.fallback = 1.0, .min = 0.0}};
inline constexpr IntegerOption kSamples{
    "samples", "samples of a rank", {.fallback = 64, .min = 1, .max = 1'000'000}};
inline constexpr IntegerOption kBatchSize{
    "batch_size", "samples of a gradient; 0: all", {.fallback = 8, .min = 0, .max = 1'000'000}};
inline constexpr NumberOption kL2{
    "l2", "weight of the squared norm", {.fallback = 1e-2, .min = 0.0, .above_min = true}};

}  // namespace gossamer::apps::simulate_options

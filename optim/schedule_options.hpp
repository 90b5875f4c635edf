#pragma once
// The options of the learning-rate schedules, which schedules.cpp reads and their rows list.

#include "base/option.hpp"

namespace gossamer {

namespace warmup {
inline constexpr IntegerOption kSteps{
    "t_warmup", "steps of linear warm-up", {.fallback = 0, .min = 0}};
inline constexpr NumberOption kStart{"warmup_decay",
                                     "the warm-up begins at this times the learning rate",
                                     {.fallback = 0.01, .min = 0.0, .max = 1.0}};
inline constexpr OptionalIntegerOption kStepsAfter{
    "t_max",
    "steps after the warm-up in which the rate falls, and then stays",
    {{.min = 1}},
    "the rest of the run"};
}  // namespace warmup

namespace cosine {
inline constexpr NumberOption kEnd{
    "eta_min", "the learning rate at t_max and after it", {.fallback = 0.0, .min = 0.0}};
inline constexpr std::array kOptions =
    option_list(warmup::kSteps, warmup::kStart, warmup::kStepsAfter, kEnd);
}  // namespace cosine

namespace step {
inline constexpr IntegerOption kSize{
    "step_size", "steps between two reductions", {.fallback = 1000, .min = 1}};
inline constexpr NumberOption kGamma{
    "gamma", "factor of each reduction", {.fallback = 0.1, .min = 0.0, .above_min = true}};
inline constexpr std::array kOptions = option_list(kSize, kGamma);
}  // namespace step

namespace linear {
inline constexpr NumberOption kEnd{
    "end_factor",
    "at t_max and after it, the learning rate is this times the first",
    {.fallback = 0.0, .min = 0.0, .max = 1.0}};
inline constexpr std::array kOptions =
    option_list(warmup::kSteps, warmup::kStart, warmup::kStepsAfter, kEnd);
}  // namespace linear

}  // namespace gossamer

#pragma once
// The options of gradients and of buckets, which the program and Python read.

#include "base/option.hpp"
#include "core/bucket/gradient_policy.hpp"

namespace gossamer {

inline constexpr ChoiceOption kNonfinite{
    "nonfinite",
    "when a gradient is not finite: abort: end with exit code 76 before any peer mixes with it; "
    "skip: all ranks leave the step out (updates then wait for the end of the backward pass)",
    {.fallback = "abort", .names = nonfinite_names},
    "skip with device.precision: fp16"};
inline constexpr ChoiceOption kGradClip{
    "grad_clip",
    "per_bucket: each bucket by its own norm; global: by the norm of all gradients (updates wait "
    "for the end of the backward pass); delayed_global: by that of the step before",
    {.fallback = "none", .names = clip_mode_names}};
inline constexpr NumberOption kGradClipNorm{"grad_clip_norm",
                                            "the largest norm; only together with grad_clip",
                                            {.fallback = 1.0, .min = 0.0, .above_min = true}};

inline constexpr ChoiceOption kRecipe{
    "recipe",
    "allreduce: learning rate and norm are those of a recipe for all-reduce with the same total "
    "batch, and the run multiplies them by the noise that it measures; own: they are the run's",
    {.fallback = "own", .names = recipe_names}};

inline constexpr NumberOrWordOption kBucketSizeMb{
    "size_mb",
    "MiB at which a bucket closes; auto: the first steps (about 80) try 25, 8, 3 and 1, and "
    "training goes on with the size whose steps were shortest; where buckets matter for the bits "
    "(docs/guide/checkpoints.md), two runs with auto may differ in them",
    {.word = "auto", .rule = {.fallback = 25.0, .min = 0.0, .max = 1e6, .above_min = true}}};

}  // namespace gossamer

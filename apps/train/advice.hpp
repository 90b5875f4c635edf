#pragma once
// Advice about settings of a run that are known to cost accuracy, or to make it diverge. No state;
// any thread may call. Errors: none.

#include <string>

#include "apps/train/run_config.hpp"

namespace gossamer::apps {

/// For the beginning of a run of several ranks: a setting that is known to cost accuracy
/// (docs/measurements/accuracy.md); empty: there is none.
std::string advice_at_start(const RunConfig& config);

/// What usually helps against divergence.
std::string advice_against_divergence(const RunConfig& config);

}  // namespace gossamer::apps

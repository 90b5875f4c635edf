#pragma once
// The figures of a simulation, for programs.

#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "apps/lab/simulate/simulation.hpp"

namespace gossamer::apps {

/// The spectral gap of the simulated topology; nothing for more than 4096 ranks, whose analysis
/// would take longer than the simulation.
std::optional<double> gap_of(const SimulationConfig& config);

/// What was simulated, all figures, and all points.
nlohmann::ordered_json to_json(const SimulationConfig& config, const SimulationResult& result,
                               const std::optional<double>& gap);

}  // namespace gossamer::apps

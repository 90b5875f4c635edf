#include "apps/lab/simulate/simulation_report.hpp"

#include <utility>

#include <nlohmann/json.hpp>

#include "apps/records/json.hpp"
#include "topology/spectrum.hpp"

namespace gossamer::apps {

std::optional<double> gap_of(const SimulationConfig& config) {
  constexpr int kMostAnalysed = 4096;
  if (config.world.size > kMostAnalysed) return std::nullopt;
  return spectral_gap(*config.topology, config.world.size);
}

nlohmann::ordered_json to_json(const SimulationConfig& config, const SimulationResult& result,
                               const std::optional<double>& gap) {
  nlohmann::ordered_json json = {{"kind", config.trains ? "sgd" : "consensus"},
                                 {"topology", config.topology->name()},
                                 {"world_size", config.world.size},
                                 {"local_world_size", config.world.node_size},
                                 {"rounds", config.rounds},
                                 {"dim", config.dim},
                                 {"seed", config.seed},
                                 {"period", or_null(config.topology->period())},
                                 {"spectral_gap", or_null(gap)}};
  if (config.trains) {
    json["steady"] = {{"consensus_distance", result.steady.consensus_distance},
                      {"excess_loss", result.steady.excess_loss},
                      {"distance_to_optimum", result.steady.distance_to_optimum}};
  } else {
    json["measured_factor_per_period"] = or_null(result.measured_factor);
    json["mean_drift"] = result.mean_drift;
    json["exact_after"] = or_null(result.exact_after);
    json["rounds_to_1e-3"] = or_null(result.rounds_to_thousandth);
  }
  auto points = nlohmann::ordered_json::array();
  for (const SimulationPoint& point : result.points) {
    nlohmann::ordered_json entry = {{"round", point.round},
                                    {"consensus_distance", point.consensus_distance}};
    if (config.trains) {
      entry["excess_loss"] = point.excess_loss;
      entry["distance_to_optimum"] = point.distance_to_optimum;
    }
    points.push_back(std::move(entry));
  }
  json["points"] = std::move(points);
  return json;
}

}  // namespace gossamer::apps

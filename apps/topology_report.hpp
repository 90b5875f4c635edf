#pragma once
// Topologies for people and for programs.

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "gossamer/topology/topology.hpp"

namespace gossamer::apps {

/// name, world_size, local_world_size, period, rounds, spectral_gap, exact_after.
nlohmann::ordered_json to_json(const Topology& topology, const World& world);

/// One line per round: `round 0: 0-1 2-3 (4)`; a rank in brackets sits out. At most `max_rounds`.
std::string describe_rounds(const Topology& topology, std::int64_t max_rounds = 32);

}  // namespace gossamer::apps

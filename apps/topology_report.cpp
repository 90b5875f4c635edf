#include "gossamer/apps/topology_report.hpp"

#include <algorithm>
#include <sstream>

#include "gossamer/core/base/text.hpp"
#include "gossamer/topology/mixing.hpp"

namespace gossamer::apps {
namespace {

// Rounds shown of a topology that never repeats.
constexpr std::int64_t kSample = 8;

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

nlohmann::ordered_json to_json(const Topology& topology, const World& world) {
  auto rounds = nlohmann::ordered_json::array();
  for (std::int64_t k = 0; k < topology.period().value_or(kSample); ++k) {
    auto edges = nlohmann::ordered_json::array();
    for (const Edge& edge : topology.round(k).edges) {
      edges.push_back({{"ranks", edge.ranks}, {"weight", edge.weight}});
    }
    rounds.push_back({{"edges", std::move(edges)}});
  }
  return {{"name", topology.name()},
          {"world_size", world.size},
          {"local_world_size", world.local_size},
          {"period", or_null(topology.period())},
          {"rounds", std::move(rounds)},
          {"spectral_gap", or_null(spectral_gap(topology, world.size))},
          {"exact_after", or_null(exact_after(topology, world.size))}};
}

std::string describe_rounds(const Topology& topology, std::int64_t max_rounds) {
  std::ostringstream out;
  const std::int64_t num_rounds = topology.period().value_or(kSample);
  for (std::int64_t k = 0; k < std::min(num_rounds, max_rounds); ++k) {
    out << "  round " << k << ":";
    for (const Edge& edge : topology.round(k).edges) {
      const std::string ranks = join(edge.ranks, "-");
      out << " " << (edge.ranks.size() == 1 ? "(" + ranks + ")" : ranks);
    }
    out << "\n";
  }
  if (num_rounds > max_rounds) out << "  ... and " << num_rounds - max_rounds << " more\n";
  return out.str();
}

}  // namespace gossamer::apps

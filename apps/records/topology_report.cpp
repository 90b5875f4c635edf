#include "apps/records/topology_report.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "apps/records/json.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "topology/rank_round.hpp"

namespace gossamer::apps {
namespace {

// Rounds shown of a topology without a period.
constexpr std::int64_t kSample = 8;
// Ranks times rounds: the limit for figures of traffic, and for rounds written as JSON.
constexpr std::int64_t kMostLookedAt = std::int64_t{1} << 24;
constexpr std::int64_t kMostWritten = std::int64_t{1} << 22;
// The number of ranks that one line of text names.
constexpr std::size_t kMostInLine = 200;

nlohmann::ordered_json json_of(const Round& round, bool directed) {
  if (round.arcs.empty()) {
    auto edges = nlohmann::ordered_json::array();
    for (const Edge& edge : round.edges) {
      edges.push_back({{"ranks", edge.ranks}, {"weight", edge.weight}});
    }
    return {{"edges", std::move(edges)}};
  }
  auto arcs = nlohmann::ordered_json::array();
  for (const Arc& arc : round.arcs) {
    arcs.push_back({{"from", arc.from}, {"to", arc.to}, {"weight", arc.weight}});
  }
  for (const Edge& edge : round.edges) {
    // In a round of arcs, edges of one rank are the ranks that sit out.
    const int rank = edge.ranks.front();
    arcs.push_back({{"from", rank}, {"to", rank}, {"weight", edge.weight}});
  }
  return {{"arcs", std::move(arcs)}, {"directed", directed}};
}

/// `1 round`, `4 rounds`.
std::string count_of_rounds(std::int64_t rounds) {
  return concat(rounds, rounds == 1 ? " round" : " rounds");
}

void describe(const Round& round, std::ostream& out) {
  if (round.node_size > 1) out << " nodes of " << round.node_size << ":";
  std::size_t named = 0;
  for (const Edge& edge : round.edges) {
    const std::string ranks = join(edge.ranks, "-");
    out << " " << (edge.ranks.size() == 1 ? "(" + ranks + ")" : ranks);
    named += edge.ranks.size();
    if (named > kMostInLine) break;
  }
  const auto back = [&round](const Arc& arc) {
    return std::ranges::binary_search(
        round.arcs, std::pair(arc.from, arc.to), std::ranges::less(),
        [](const Arc& other) { return std::pair(other.to, other.from); });
  };
  for (const Arc& arc : round.arcs) {
    if (arc.from == arc.to) continue;
    const bool both = back(arc);
    if (both && arc.from > arc.to) continue;
    out << " " << arc.from << (both ? "=" : ">") << arc.to;
    named += 2;
    if (named > kMostInLine) break;
  }
  if (named > kMostInLine) out << " ...";
  out << "\n";
}

}  // namespace

TopologyFigures topology_figures(const Topology& topology, int world_size,
                                 std::int64_t model_bytes) {
  TopologyFigures figures{.period = topology.period(),
                          .speed = consensus_speed(topology, world_size),
                          .model_bytes = model_bytes};
  const std::int64_t most = std::max<std::int64_t>(1, kMostLookedAt / world_size);
  const std::int64_t num_rounds = std::min(most, figures.period.value_or(8 * kSample));
  for (std::int64_t k = 0; k < num_rounds; ++k) {
    const RoundTraffic traffic = round_traffic(topology.round(k), world_size, model_bytes);
    figures.degree = std::max(figures.degree, traffic.max_degree);
    figures.bytes_per_step += traffic.mean_bytes / static_cast<double>(num_rounds);
    figures.max_bytes_per_step = std::max(figures.max_bytes_per_step, traffic.max_bytes);
  }
  return figures;
}

std::int64_t rounds_to_write(const Topology& topology, const World& world,
                             std::optional<std::int64_t> max_rounds) {
  const std::int64_t all = topology.period().value_or(kSample);
  const std::int64_t num_rounds = std::min(all, max_rounds.value_or(all));
  if (num_rounds > kMostWritten / world.size) {
    throw ConfigError("command line", "--json",
                      concat(num_rounds, " rounds of ", world.size,
                             " ranks are too many to write down, allowed: --rounds ",
                             kMostWritten / world.size, " or less"));
  }
  return num_rounds;
}

void write_json(std::ostream& out, const Topology& topology, const World& world,
                const TopologyFigures& figures, std::optional<std::int64_t> max_rounds) {
  const std::int64_t num_rounds = rounds_to_write(topology, world, max_rounds);
  const auto& count = figures.speed.rounds_to_thousandth;
  const nlohmann::ordered_json report = {
      {"name", topology.name()},
      {"world_size", world.size},
      {"local_world_size", world.node_size},
      {"period", or_null(figures.period)},
      {"rounds", nullptr},
      {"spectral_gap", or_null(figures.speed.spectral_gap)},
      {"exact_after", or_null(figures.speed.exact_after)},
      {"directed", topology.directed()},
      {"consensus_rate", or_null(figures.speed.consensus_rate)},
      {"rounds_to_1e-3", count ? nlohmann::ordered_json(count->rounds) : nullptr},
      {"rounds_to_1e-3_estimated", count && count->estimated},
      {"degree", figures.degree},
      {"model_bytes", figures.model_bytes},
      {"bytes_per_step", figures.bytes_per_step},
      {"max_bytes_per_step", figures.max_bytes_per_step}};
  const char* separator = "{\n";
  for (const auto& [key, value] : report.items()) {
    out << std::exchange(separator, ",\n") << "  \"" << key << "\": ";
    if (key != "rounds") {
      out << value.dump();
      continue;
    }
    for (std::int64_t k = 0; k < num_rounds; ++k) {
      const Round round = flat_round(topology.round(k), world.size);
      out << (k == 0 ? "[\n    " : ",\n    ") << json_of(round, topology.directed()).dump();
    }
    out << "\n  ]";
  }
  out << "\n}\n";
}

std::string describe_rounds(const Topology& topology, std::int64_t max_rounds) {
  std::ostringstream out;
  const std::int64_t num_rounds = topology.period().value_or(kSample);
  for (std::int64_t k = 0; k < std::min(num_rounds, max_rounds); ++k) {
    out << "  round " << k << ":";
    describe(topology.round(k), out);
  }
  if (num_rounds > max_rounds) out << "  ... and " << num_rounds - max_rounds << " more\n";
  return out.str();
}

std::string describe_figures(const TopologyFigures& figures) {
  std::ostringstream out;
  const auto models = [&figures](double bytes) {
    return bytes / static_cast<double>(figures.model_bytes);
  };
  out << (figures.period ? concat("  the rounds repeat after ", *figures.period)
                         : std::string("  the rounds never repeat"))
      << "; a rank has at most " << figures.degree << (figures.degree == 1 ? " peer" : " peers")
      << " in a round\n";
  out << "  a rank sends " << human_bytes(figures.bytes_per_step) << " of a model of "
      << human_bytes(static_cast<double>(figures.model_bytes)) << " per step ("
      << models(figures.bytes_per_step) << " times the model; at most "
      << models(figures.max_bytes_per_step) << ")\n";
  if (figures.speed.exact_after) {
    out << "  all ranks have the exact mean after " << count_of_rounds(*figures.speed.exact_after)
        << "\n";
  }
  if (figures.speed.spectral_gap)
    out << "  spectral gap of a period: " << *figures.speed.spectral_gap << "\n";
  if (figures.speed.consensus_rate && *figures.speed.consensus_rate > 0.0) {
    out << "  in the long run the distance from the mean shrinks to "
        << *figures.speed.consensus_rate << " of itself per round\n";
  }
  const auto& count = figures.speed.rounds_to_thousandth;
  out << (count ? concat("  to a thousandth after ", count_of_rounds(count->rounds),
                         count->estimated ? " (estimated)" : "")
                : std::string("  how long it takes to a thousandth is not known: the ranks never "
                              "agree, or there are too many rounds to follow"))
      << "\n";
  return out.str();
}

}  // namespace gossamer::apps

#pragma once
// Topologies for people and for programs.

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "topology/spectrum.hpp"
#include "topology/topology.hpp"

namespace gossamer::apps {

/// What there is to know about a topology without running it. Traffic is that of one period, or of
/// a sample of its rounds where a period is long or missing.
struct TopologyFigures {
  std::optional<std::int64_t> period = {};
  ConsensusSpeed speed = {};
  /// The most peers of a rank in one round.
  std::int64_t degree = 0;
  /// Of a model of this size, bytes that a rank sends in a step, on average and the one that sends
  /// most.
  std::int64_t model_bytes = 0;
  double bytes_per_step = 0.0;
  double max_bytes_per_step = 0.0;
};

TopologyFigures topology_figures(const Topology& topology, int world_size,
                                 std::int64_t model_bytes);

/// Writes an object with name, world_size, local_world_size, period, rounds, spectral_gap,
/// exact_after and the other figures. `rounds` are those of one period (of topologies without one,
/// the first 8), or the first `max_rounds`; they are written one by one, so that memory stays
/// small. Throws ConfigError when that is too much to write down.
void write_json(std::ostream& out, const Topology& topology, const World& world,
                const TopologyFigures& figures, std::optional<std::int64_t> max_rounds);

/// One line per round: `round 0: 0-1 2-3 (4)`; a rank in brackets sits out, `0>1` is a message from
/// 0 to 1, `0=1` goes both ways. At most `max_rounds`.
std::string describe_rounds(const Topology& topology, std::int64_t max_rounds = 32);

/// The figures in sentences, each line indented by two spaces.
std::string describe_figures(const TopologyFigures& figures);

}  // namespace gossamer::apps

#pragma once
// Reports on a topology: figures, text for people and JSON for programs.

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "topology/spectrum.hpp"
#include "topology/topology.hpp"

namespace gossamer::apps {

/// The figures of a topology. Traffic covers one period, or a sample of rounds where the period is
/// long or missing.
struct TopologyFigures {
  std::optional<std::int64_t> period = {};
  ConsensusSpeed speed = {};
  /// The largest number of peers that a rank has in one round.
  std::int64_t degree = 0;
  /// Bytes that a rank sends per step for a model of `model_bytes` bytes: the mean over ranks, and
  /// the largest.
  std::int64_t model_bytes = 0;
  double bytes_per_step = 0.0;
  double max_bytes_per_step = 0.0;
};

TopologyFigures topology_figures(const Topology& topology, int world_size,
                                 std::int64_t model_bytes);

/// The number of rounds that write_json() writes: `max_rounds`, by default the rounds of one
/// period, or 8 of a topology without a period. Throws ConfigError when that is too much to write
/// down. It throws at once, while topology_figures() may take long.
std::int64_t rounds_to_write(const Topology& topology, const World& world,
                             std::optional<std::int64_t> max_rounds);

/// Writes an object with name, world_size, local_world_size, period, rounds, spectral_gap,
/// exact_after and the other figures. `rounds` are the first rounds_to_write() rounds. They are
/// written one by one, so that memory stays small. Throws as rounds_to_write().
void write_json(std::ostream& out, const Topology& topology, const World& world,
                const TopologyFigures& figures, std::optional<std::int64_t> max_rounds);

/// One line per round: `round 0: 0-1 2-3 (4)`. A rank in brackets sits out, `0>1` is a message from
/// 0 to 1, and `0=1` goes both ways. At most `max_rounds` lines.
std::string describe_rounds(const Topology& topology, std::int64_t max_rounds = 32);

/// The figures in sentences, each line indented by two spaces.
std::string describe_figures(const TopologyFigures& figures);

}  // namespace gossamer::apps

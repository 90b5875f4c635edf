#pragma once
// A round as one rank sees it: whom it sends to, whom it hears from, and with which weights.

#include <cstdint>
#include <vector>

#include "gossamer/topology/topology.hpp"

namespace gossamer {

/// x <- keep * x + sum over i of take[i] * (what has arrived in inbox i).
///
/// In rounds of two levels (node_size > 1) ranks are nodes here: x is the average of the node.
struct RankRound {
  enum class Kind : std::uint8_t {
    /// Nothing is sent; keep = 1.
    kIdle,
    /// send_to and receive_from hold the same one peer.
    kPair,
    /// The inbox takes the sum over `group`, this rank included.
    kGroup,
    /// One message to each of `send_to`, one inbox for each of `receive_from`.
    kNeighbors,
  };

  Kind kind = Kind::kIdle;
  /// All members, this one included, ascending.
  std::vector<int> group = {};
  /// Ascending.
  std::vector<int> send_to = {};
  std::vector<int> receive_from = {};
  double keep = 1.0;
  std::vector<double> take = {};
  int node_size = 1;
  /// Updates are multiplied by this; other than 1 under push-sum alone.
  double update_scale = 1.0;
};

/// The part of `rank` in a round. Throws std::logic_error when it has none.
RankRound rank_round(const Round& round, int rank);

}  // namespace gossamer

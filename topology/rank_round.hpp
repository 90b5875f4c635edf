#pragma once
// A round as one rank sees it: whom it sends to, whom it hears from, and with which weights.

#include <cstdint>
#include <vector>

#include "topology/topology.hpp"

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
  friend bool operator==(const RankRound&, const RankRound&) = default;
};

/// The part of `rank` in a round. Throws std::logic_error when it has none.
RankRound rank_round(const Round& round, int rank);

/// Bytes that one of `num_ranks` ranks sends at the least to exchange a block of `bytes`: a pair
/// sends it once, a group of n sends 2 (n-1) / n of it (Patarasuk and Yuan, "Bandwidth optimal
/// all-reduce algorithms for clusters of workstations", 2009).
double exchange_bytes(std::int64_t bytes, std::size_t num_ranks);

/// Bytes that `rank` sends in its part of a round, for a block of `bytes`. Of two levels: its share
/// of the sum inside the node; the node's first rank also exchanges and sends the result once.
double bytes_sent(const RankRound& round, int rank, std::int64_t bytes);

/// Ranks it talks to in a round: peers it sends to, or hears from if those are more, or the other
/// members of its group. Of two levels: nodes.
std::int64_t degree(const RankRound& round);

/// What a round asks of its ranks, all of them looked at together.
struct RoundTraffic {
  std::int64_t max_degree = 0;
  /// Bytes sent per rank, on average and by the one that sends most.
  double mean_bytes = 0.0;
  double max_bytes = 0.0;
};

/// For blocks of `bytes`; work proportional to the ranks and arcs of the round.
RoundTraffic round_traffic(const Round& round, int world_size, std::int64_t bytes);

}  // namespace gossamer

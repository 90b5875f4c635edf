#pragma once
// One rank's part of a round: the ranks it sends to, the ranks it hears from, and the weights.

#include <cstdint>
#include <vector>

#include "topology/topology.hpp"

namespace gossamer {

/// x <- keep * x + sum over i of take[i] * inbox i.
///
/// In rounds of two levels (node_size > 1) all ranks named here are nodes, and x is the average of
/// the node.
struct RankRound {
  enum class Kind : std::uint8_t {
    /// Nothing is sent; keep = 1.
    kIdle,
    /// send_to and receive_from hold the same one peer.
    kPair,
    /// The inbox takes the sum over `group`, this rank included.
    kGroup,
    /// The rank sends one message to each rank of `send_to`, and has one inbox for each rank of
    /// `receive_from`.
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
  /// Updates are multiplied by this. It differs from 1 only under push-sum.
  double update_scale = 1.0;
  friend bool operator==(const RankRound&, const RankRound&) = default;
};

/// The part of `rank` in a round. Throws std::logic_error when it has none.
RankRound rank_round(const Round& round, int rank);

/// The least number of bytes that each of `num_ranks` ranks must send to exchange a block of
/// `bytes`. In a pair this is the whole block, and in a group of n ranks 2 (n-1) / n of it. Source:
/// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
/// 2009.
double exchange_bytes(std::int64_t bytes, std::size_t num_ranks);

/// The bytes of a block.
struct BlockBytes {
  std::int64_t plain = 0;
  /// Bytes of a block in messages to peers and neighbours; fewer than `plain` under a codec. Sums
  /// are always plain.
  std::int64_t encoded = 0;

  // NOLINTNEXTLINE(google-explicit-constructor): without a codec there is one number
  BlockBytes(std::int64_t bytes) : plain(bytes), encoded(bytes) {}
  BlockBytes(std::int64_t plain_bytes, std::int64_t encoded_bytes)
      : plain(plain_bytes), encoded(encoded_bytes) {}
};

/// Bytes that `rank` sends in its part of a round, for a block of `bytes`. In rounds of two levels
/// every rank sends its share of the sum inside the node; the node's first rank also exchanges with
/// other nodes and sends the result once.
double bytes_sent(const RankRound& round, int rank, const BlockBytes& bytes);

/// The load that a round puts on its ranks.
struct RoundTraffic {
  std::int64_t max_degree = 0;
  /// Bytes sent: the mean over all ranks, and the most of any rank.
  double mean_bytes = 0.0;
  double max_bytes = 0.0;
};

/// The traffic of a round that exchanges blocks of `bytes` bytes. Takes time proportional to the
/// ranks and arcs of the round.
RoundTraffic round_traffic(const Round& round, int world_size, std::int64_t bytes);

}  // namespace gossamer

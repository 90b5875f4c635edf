#pragma once
// Measures the links between chosen pairs of ranks. Exchanges of small blocks give the latency,
// exchanges of large blocks the bandwidth of a steady state (pair_timer.hpp); blocks travel in both
// directions at once, as between pairs in training. The figures are those of a whole exchange,
// progress worker included, and not the limit of the wire.
//
// On the backend `tcp` a small exchange between nodes takes two latencies, because every message
// waits for its receiver's word (Links::receivers_say_ready()). TCP itself tells there how many
// connections carried the blocks, and how many segments it had to send again.
//
// Protocol: run_link_bench() is collective. Either the pairs take turns, exchange by exchange,
// while the other ranks wait; this tells what one link can do. Or all pairs exchange at once, as in
// training; this tells what remains when pairs share switches and processors.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "apps/lab/plan/links.hpp"
#include "apps/lab/plan/measured_links.hpp"
#include "comm/communicator.hpp"

namespace gossamer::apps {

struct LinkBenchOptions {
  std::vector<RankPair> pairs = {};
  /// True: all pairs exchange at once; no rank may then be in two pairs.
  bool together = false;
  /// Bytes of a large block; at least 8.
  std::int64_t bytes = std::int64_t{16} << 20U;
  /// Exchanges of small blocks (num_pings) and of large blocks (num_transfers) per pair.
  int num_pings = 200;
  int num_transfers = 10;
  /// Sums of large blocks over all ranks, too, one after the other, num_transfers times.
  bool sums = false;
  /// The backend of the communicator.
  std::string backend = {};
};

struct LinkFigures {
  std::vector<PairFigures> pairs = {};
  /// What the pairs say.
  Links links = {};
  /// The median seconds of a sum of `sum_bytes` over all ranks, if it was wanted.
  std::optional<double> sum_s = std::nullopt;
  std::int64_t sum_bytes = 0;
};

/// Collective. Throws ConfigError where hosts do not tell which ranks form a node (Placement).
void require_regular_hosts(Communicator& communicator, const World& world);
/// Two ranks of a node and two of different nodes, as far as there are such.
std::vector<RankPair> default_pairs(const World& world);
/// Pairs every rank with the rank at the same place of the next node; on one node, pairs
/// neighbours.
std::vector<RankPair> disjoint_pairs(const World& world);
/// Reads `all`, or pairs such as `0-1,0-2`. Throws ConfigError for a pair that this world does not
/// have.
std::vector<RankPair> parse_pairs(std::string_view text, const World& world);

/// Collective. Returns the same figures on every rank. Throws ConfigError for impossible options,
/// and CommError.
LinkFigures run_link_bench(Communicator& communicator, const World& world,
                           const LinkBenchOptions& options);

/// Writes the links as read_links() reads them, and the figures of the pairs.
nlohmann::ordered_json to_json(const LinkFigures& figures);

}  // namespace gossamer::apps

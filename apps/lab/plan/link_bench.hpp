#pragma once
// Measures the links between chosen pairs of ranks: exchanges of small blocks for the latency, of
// large ones for the bandwidth, both directions at once, as pairs exchange in training. What is
// measured is what an exchange gets, progress worker included, not what the wire could do.
//
// Protocol: run_link_bench() is collective. Pairs take turns, exchange by exchange, while the other
// ranks wait, or exchange all at once, as in training. The first tells what a link can do, the
// second what is left of it when switches and processors are shared.

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "apps/lab/plan/links.hpp"
#include "comm/communicator.hpp"

namespace gossamer::apps {

using RankPair = std::pair<int, int>;

struct LinkBenchOptions {
  std::vector<RankPair> pairs = {};
  /// All at once; no rank may then stand in two pairs.
  bool together = false;
  /// Bytes of a large block; at least 8.
  std::int64_t bytes = std::int64_t{16} << 20U;
  /// Small exchanges per pair, and large ones.
  int num_pings = 200;
  int num_transfers = 10;
};

struct PairFigures {
  RankPair pair = {};
  bool is_within = false;
  LinkSpeed speed = {};
};

struct LinkFigures {
  std::vector<PairFigures> pairs = {};
  /// Medians over the pairs of each kind.
  Links links = {};
};

/// Collective. Throws ConfigError where hosts do not tell which ranks form a node (Placement).
void require_regular_hosts(Communicator& communicator, const World& world);
/// Two ranks of a node and two of different nodes, as far as there are such.
std::vector<RankPair> default_pairs(const World& world);
/// Every rank with the one in its place on the next node; on one node, neighbours.
std::vector<RankPair> disjoint_pairs(const World& world);
/// `all`, or `0-1,0-2`. Throws ConfigError for what is no pair of this world.
std::vector<RankPair> parse_pairs(std::string_view text, const World& world);

/// The same figures on every rank. Throws ConfigError for options that cannot be, CommError.
LinkFigures run_link_bench(Communicator& communicator, const World& world,
                           const LinkBenchOptions& options);

/// What read_links() reads, and the pairs.
nlohmann::ordered_json to_json(const LinkFigures& figures);

}  // namespace gossamer::apps

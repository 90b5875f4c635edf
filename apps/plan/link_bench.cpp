#include "apps/plan/link_bench.hpp"

#include <algorithm>
#include <chrono>
#include <string>

#include <nlohmann/json.hpp>

#include "apps/bench/statistics.hpp"
#include "base/buffer.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int kWarmUp = 3;
constexpr std::int64_t kSmallBytes = 8;

/// Exchanges between the pairs, in turns or all at once.
class PairTimer {
 public:
  PairTimer(Communicator& communicator, const std::vector<RankPair>& pairs, bool together)
      : communicator_(communicator), pairs_(pairs), together_(together) {}

  /// The median seconds of an exchange, for each pair; 0 for pairs of other ranks.
  std::vector<double> run(std::int64_t bytes, int count) {
    const Buffer sent(bytes, DType::kUInt8);
    const Buffer received(bytes, DType::kUInt8);
    std::vector<std::vector<double>> seconds(pairs_.size());
    for (int turn = -kWarmUp; turn < count; ++turn) {
      for (std::size_t p = 0; p < pairs_.size(); ++p) {
        if (p == 0 || !together_) communicator_.barrier();
        const auto& [a, b] = pairs_[p];
        if (communicator_.rank() != a && communicator_.rank() != b) continue;
        const double passed =
            exchange_s(communicator_.rank() == a ? b : a, sent.block(), received.block());
        if (turn >= 0) seconds[p].push_back(passed);
      }
    }
    std::vector<double> medians;
    for (const std::vector<double>& each : seconds) {
      medians.push_back(each.empty() ? 0.0 : median(each));
    }
    return medians;
  }

 private:
  double exchange_s(int peer, const Block& sent, const Block& received) {
    const auto begin = Clock::now();
    communicator_.exchange(peer, sent, received, {.label = {.what = "link bench"}}).wait();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  Communicator& communicator_;
  const std::vector<RankPair>& pairs_;
  bool together_;
};

bool are_disjoint(const std::vector<RankPair>& pairs) {
  std::vector<int> ranks;
  for (const auto& [a, b] : pairs) ranks.insert(ranks.end(), {a, b});
  std::ranges::sort(ranks);
  return std::ranges::adjacent_find(ranks) == ranks.end();
}

LinkSpeed speed_of(double small_s, double large_s, std::int64_t bytes) {
  // If the machine was busy meanwhile, small blocks may have taken longer than large ones.
  const double wire_s = large_s > small_s ? large_s - small_s : large_s;
  return {.latency_s = small_s, .bandwidth = static_cast<double>(bytes) / wire_s};
}

bool is_within_node(const RankPair& pair, const World& world) {
  return pair.first / world.node_size == pair.second / world.node_size;
}

bool is_pair_of(const RankPair& pair, const World& world) {
  const auto is_rank = [&](int rank) { return rank >= 0 && rank < world.size; };
  return is_rank(pair.first) && is_rank(pair.second) && pair.first != pair.second;
}

RankPair parse_pair(std::string_view text, const World& world) {
  RankPair pair;
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos || !parse_whole(text.substr(0, dash), pair.first) ||
      !parse_whole(text.substr(dash + 1), pair.second) || !is_pair_of(pair, world)) {
    throw ConfigError("command line", "--pairs",
                      concat("'", text,
                             "' is no pair of this world, allowed: all, or two "
                             "different ranks from 0 to ",
                             world.size - 1, ", as 0-1"));
  }
  return std::minmax(pair.first, pair.second);
}

std::optional<LinkSpeed> middle(const std::vector<PairFigures>& pairs, bool is_within) {
  std::vector<double> latencies;
  std::vector<double> bandwidths;
  for (const PairFigures& each : pairs) {
    if (each.is_within != is_within) continue;
    latencies.push_back(each.speed.latency_s);
    bandwidths.push_back(each.speed.bandwidth);
  }
  if (latencies.empty()) return std::nullopt;
  return LinkSpeed{.latency_s = median(latencies), .bandwidth = median(bandwidths)};
}

}  // namespace

void require_regular_hosts(Communicator& communicator, const World& world) {
  const int here = world.placement.local_world_size;
  const std::vector<std::string> sizes = communicator.all_gather(std::to_string(here));
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    if (sizes[rank] == std::to_string(world.node_size)) continue;
    throw ConfigError("command line", "--local-size",
                      concat("is needed here: the host of rank ", rank, " has ", sizes[rank],
                             sizes[rank] == "1" ? " rank" : " ranks",
                             ", and either other hosts have more or fewer, or ranks are not "
                             "numbered host by host, so nodes cannot be told from hosts; give "
                             "--local-size, or start equally many ranks on each host, host by "
                             "host (mpirun --map-by slot)"));
  }
}

std::vector<RankPair> default_pairs(const World& world) {
  std::vector<RankPair> pairs;
  if (world.node_size > 1) pairs.emplace_back(0, 1);
  if (world.size > world.node_size) pairs.emplace_back(0, world.node_size);
  return pairs;
}

std::vector<RankPair> disjoint_pairs(const World& world) {
  // Neighbouring nodes; on one node, neighbouring ranks.
  const int stride = world.size > world.node_size ? world.node_size : 1;
  std::vector<RankPair> pairs;
  for (int first = 0; first + stride < world.size; first += 2 * stride) {
    for (int rank = first; rank < first + stride && rank + stride < world.size; ++rank) {
      pairs.emplace_back(rank, rank + stride);
    }
  }
  return pairs;
}

std::vector<RankPair> parse_pairs(std::string_view text, const World& world) {
  std::vector<RankPair> pairs;
  if (text == "all") {
    for (int a = 0; a < world.size; ++a) {
      for (int b = a + 1; b < world.size; ++b) pairs.emplace_back(a, b);
    }
    return pairs;
  }
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    pairs.push_back(parse_pair(text.substr(begin, end - begin), world));
    begin = end + 1;
  }
  return pairs;
}

LinkFigures run_link_bench(Communicator& communicator, const World& world,
                           const LinkBenchOptions& options) {
  if (world.size < 2) {
    throw ConfigError(
        "One rank alone has no links to measure: start at least two, with mpirun or --ranks.");
  }
  if (options.bytes < kSmallBytes || options.num_pings < 1 || options.num_transfers < 1 ||
      !std::ranges::all_of(options.pairs,
                           [&](const RankPair& pair) { return is_pair_of(pair, world); })) {
    throw ConfigError(
        "Links are measured with blocks of at least 8 bytes, at least once, between "
        "different ranks of the world.");
  }
  if (options.together && !are_disjoint(options.pairs)) {
    throw ConfigError("command line", "--together",
                      "pairs that are measured at once must not share a rank, allowed: pairs as "
                      "0-1,2-3");
  }
  PairTimer timer(communicator, options.pairs, options.together);
  const std::vector<double> small_s = timer.run(kSmallBytes, options.num_pings);
  const std::vector<double> large_s = timer.run(options.bytes, options.num_transfers);
  auto mine = Json::array();
  for (std::size_t p = 0; p < options.pairs.size(); ++p) {
    if (options.pairs[p].first != world.rank) continue;
    const LinkSpeed speed = speed_of(small_s[p], large_s[p], options.bytes);
    mine.push_back({speed.latency_s, speed.bandwidth});
  }
  // For each rank, the figures of the pairs whose first rank it is, in the order of the pairs.
  std::vector<Json> measured;
  for (const std::string& text : communicator.all_gather(mine.dump())) {
    measured.push_back(Json::parse(text));
  }
  LinkFigures figures;
  std::vector<std::size_t> used(measured.size());
  for (const RankPair& pair : options.pairs) {
    const auto rank = static_cast<std::size_t>(pair.first);
    const Json& numbers = measured[rank].at(used[rank]++);
    figures.pairs.push_back({.pair = pair,
                             .is_within = is_within_node(pair, world),
                             .speed = {.latency_s = numbers.at(0).get<double>(),
                                       .bandwidth = numbers.at(1).get<double>()}});
  }
  figures.links.within = middle(figures.pairs, true);
  figures.links.between = middle(figures.pairs, false);
  return figures;
}

nlohmann::ordered_json to_json(const LinkFigures& figures) {
  Json json = to_json(figures.links);
  json["pairs"] = Json::object();
  for (const PairFigures& each : figures.pairs) {
    json["pairs"][concat(each.pair.first, "-", each.pair.second)] = {
        {"within_node", each.is_within},
        {"latency_s", each.speed.latency_s},
        {"bandwidth_bytes_per_s", each.speed.bandwidth}};
  }
  return json;
}

}  // namespace gossamer::apps

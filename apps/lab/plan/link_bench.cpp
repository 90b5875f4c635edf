#include "apps/lab/plan/link_bench.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "apps/lab/bench/statistics.hpp"
#include "apps/lab/plan/pair_timer.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::int64_t kSmallBytes = 8;

bool are_disjoint(const std::vector<RankPair>& pairs) {
  std::vector<int> ranks;
  for (const auto& [a, b] : pairs) ranks.insert(ranks.end(), {a, b});
  std::ranges::sort(ranks);
  return std::ranges::adjacent_find(ranks) == ranks.end();
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

/// What the ranks of a pair have measured.
struct Measured {
  double small_s = 0.0;
  double block_s = 0.0;
  TcpTraffic tcp = {};
};

/// Of all pairs, from the ranks that are in them.
std::vector<Measured> measure(Communicator& communicator, const LinkBenchOptions& options) {
  PairTimer timer(communicator, options.pairs, options.together, options.backend == "tcp");
  const std::vector<double> small_s = timer.exchange_s(kSmallBytes, options.num_pings);
  const std::vector<double> block_s = timer.steady_s(options.bytes, options.num_transfers, small_s);
  auto mine = Json::array();
  for (std::size_t p = 0; p < options.pairs.size(); ++p) {
    const TcpTraffic& tcp = timer.tcp_traffic()[p];
    mine.push_back({small_s[p], block_s[p], tcp.sum.bytes, tcp.sum.num_segments, tcp.sum.num_resent,
                    tcp.num_streams});
  }
  std::vector<Measured> all(options.pairs.size());
  const std::vector<std::string> texts = communicator.all_gather(mine.dump());
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const Json numbers = Json::parse(texts[rank]);
    for (std::size_t p = 0; p < all.size(); ++p) {
      const auto& [a, b] = options.pairs[p];
      const bool is_first = static_cast<std::size_t>(a) == rank;
      if (!is_first && static_cast<std::size_t>(b) != rank) continue;
      const Json& own = numbers.at(p);
      if (is_first) {
        all[p].small_s = own.at(0).get<double>();
        all[p].block_s = own.at(1).get<double>();
      }
      all[p].tcp += {.sum = {.bytes = own.at(2).get<std::int64_t>(),
                             .num_segments = own.at(3).get<std::int64_t>(),
                             .num_resent = own.at(4).get<std::int64_t>()},
                     .num_streams = own.at(5).get<int>()};
    }
  }
  return all;
}

/// The median seconds of a sum over all ranks, as this rank sees it.
double measure_sums(Communicator& communicator, std::int64_t bytes, int count) {
  constexpr int kWarmUp = 2;
  const Buffer block(bytes / size_of(DType::kFloat32), DType::kFloat32);
  const Buffer sum(block.block().numel, DType::kFloat32);
  std::vector<double> seconds;
  for (int turn = -kWarmUp; turn < count; ++turn) {
    communicator.barrier();
    const auto begin = std::chrono::steady_clock::now();
    communicator.all_reduce_sum(block.block(), sum.block(), {.label = {.what = "link bench: sum"}})
        .wait();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (turn >= 0) seconds.push_back(passed.count());
  }
  return median(seconds);
}

LinkSpeed speed_of(const Measured& measured, const LinkBenchOptions& options, bool is_within) {
  const bool says_ready = Links{.backend = options.backend}.receivers_say_ready() && !is_within;
  LinkSpeed speed{.latency_s = measured.small_s / (says_ready ? 2.0 : 1.0),
                  .bandwidth = static_cast<double>(options.bytes) / measured.block_s};
  // Ranks of one host may read each other's memory. TCP then carries words alone.
  if (measured.tcp.sum.bytes < options.bytes) return speed;
  speed.num_streams = measured.tcp.num_streams;
  speed.loss_rate = static_cast<double>(measured.tcp.sum.num_resent) /
                    static_cast<double>(measured.tcp.sum.num_segments);
  return speed;
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
        "One rank alone has no links to measure: start at least two, with mpirun, --ranks or "
        "--processes, or with --rendezvous and --world-size on every host.");
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
  const std::vector<Measured> measured = measure(communicator, options);
  LinkFigures figures;
  for (std::size_t p = 0; p < options.pairs.size(); ++p) {
    const bool is_within = is_within_node(options.pairs[p], world);
    figures.pairs.push_back({.pair = options.pairs[p],
                             .is_within = is_within,
                             .speed = speed_of(measured[p], options, is_within)});
  }
  figures.links = links_of(figures.pairs, world);
  figures.links.backend = options.backend;
  if (options.sums) {
    const double own_s = measure_sums(communicator, options.bytes, options.num_transfers);
    figures.sum_s = Json::parse(communicator.all_gather(Json(own_s).dump()).front()).get<double>();
    figures.sum_bytes = options.bytes;
  }
  return figures;
}

nlohmann::ordered_json to_json(const LinkFigures& figures) {
  Json json = to_json(figures.links);
  json["pairs"] = Json::object();
  for (const PairFigures& each : figures.pairs) {
    Json& pair = json["pairs"][concat(each.pair.first, "-", each.pair.second)];
    pair = {{"within_node", each.is_within}};
    pair.update(to_json(each.speed));
  }
  if (figures.sum_s) json["sum"] = {{"bytes", figures.sum_bytes}, {"seconds", *figures.sum_s}};
  return json;
}

}  // namespace gossamer::apps

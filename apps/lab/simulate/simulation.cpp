#include "apps/lab/simulate/simulation.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "apps/lab/simulate/simulation_options.hpp"
#include "apps/lab/simulate/virtual_ranks.hpp"
#include "base/cores.hpp"
#include "base/error.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "optim/registry.hpp"
#include "topology/rank_round.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{16} << 30;
constexpr std::uint64_t kStartStream = 2;
// Distances below this fraction of the first one are rounding.
constexpr double kRounding = 1e-12;

void read_training(const Options& options, const PlugIns& own, SimulationConfig& config) {
  config.algorithm = read_algorithm(options, own.algorithms);
  const std::string reason = config.algorithm.why_not({.topology = config.topology.get()});
  if (!reason.empty()) options.fail("algorithm", reason);
  const Options optimizer = options.named_section("optimizer");
  const std::string name = optimizer.read(kOptimizerName, "sgd", optimizer_names(own.optimizers));
  config.lr = optimizer.read(simulate_options::kLr);
  config.weight_decay = optimizer.read(simulate_options::kWeightDecay);
  config.optimizer = make_optimizer(name, optimizer, own.optimizers);
  if (config.optimizer->needs_matrices()) {
    optimizer.fail("name",
                   concat(name, " updates matrices, and the parameters of a simulation are ",
                          "a vector, allowed: another optimizer"));
  }
  config.problem =
      make_problem(options.named_section("problem"),
                   {.world_size = config.world.size, .dim = config.dim, .seed = config.seed});
}

void check_memory(const Options& options, const SimulationConfig& config) {
  const int num_states = config.optimizer ? config.optimizer->num_states() : 0;
  // Blocks of `dim` elements per rank: the parameters, the sent block, at most as many sums, the
  // gradients, and the states. An algorithm with a second lane and two states needs twice as many.
  // A rank also has its part of the planned rounds of a period; in training its bucket and lanes.
  const double encoded =
      config.codec == nullptr
          ? 0.0
          : static_cast<double>(config.codec->summand_bytes(Codec::kSummandPart)) /
                (Codec::kSummandPart * sizeof(double));
  const double blocks = (config.optimizer ? 2.0 : 1.0) * (4.0 + encoded + num_states);
  double own_bytes = 4096.0;
  if (config.codec != nullptr) own_bytes += config.codec->needs_grid() ? 3072.0 : 512.0;
  const double bytes = static_cast<double>(config.world.size) *
                       (blocks * static_cast<double>(config.dim) * sizeof(double) + own_bytes);
  if (bytes <= static_cast<double>(kMostBytes)) return;
  options.fail("dim", concat(config.world.size, " ranks with ", config.dim, " parameters need ",
                             human_bytes(bytes), ", allowed: up to ",
                             human_bytes(static_cast<double>(kMostBytes))));
}

/// An algorithm that needs a static topology hears from every neighbour by itself, also in groups.
void check_links(const Options& options, const SimulationConfig& config) {
  constexpr std::int64_t kMostLinks = std::int64_t{1} << 26;
  if (config.algorithm.entry().topologies != TopologyKind::kStatic) return;
  const std::int64_t degree =
      round_traffic(config.topology->round(0), config.world.size, 0).max_degree;
  if (degree * config.world.size <= kMostLinks) return;
  options.fail("world_size", concat(config.world.size, " ranks with ", degree,
                                    " neighbours each are too many links for ",
                                    config.algorithm.name(), ", allowed: up to ", kMostLinks));
}

/// True if one of the first rounds has two levels.
bool has_two_levels(const Topology& topology) {
  constexpr std::int64_t kMostRounds = 64;
  for (std::int64_t k = 0; k < std::min(topology.period().value_or(kMostRounds), kMostRounds);
       ++k) {
    if (topology.round(k).node_size > 1) return true;
  }
  return false;
}

/// True if the point of a round is kept: all of the first 100 rounds, then ever fewer, every 50th
/// from round 2500 on, and the last round.
bool keeps(std::int64_t round, std::int64_t last) {
  if (round <= 100 || round == last) return true;
  const std::int64_t stride = std::max<std::int64_t>(1, round / 50);
  return round % stride == 0;
}

class Run {
 public:
  Run(const SimulationConfig& config, int num_threads)
      : config_(config),
        ranks_({.topology = config.topology,
                .world_size = config.world.size,
                .dim = config.dim,
                .algorithm = config.algorithm,
                .codec = config.codec,
                .optimizer = config.optimizer,
                .schedule = make_schedule("constant", {.lr = config.lr}),
                .weight_decay = config.weight_decay,
                .num_threads = num_threads}) {}

  SimulationResult consensus() {
    ranks_.begin_at([this](int rank, std::span<double> x) {
      Random random(config_.seed, kStartStream + static_cast<std::uint64_t>(rank));
      for (double& value : x) value = random.normal();
    });
    const std::vector<double> start = ranks_.mean();
    // Measure distances from the mean of the start: mixing preserves it, so a drift of the mean
    // also shows.
    distances_ = {ranks_.distance_from(start)};
    result_.points.push_back({.consensus_distance = distances_.front()});
    for (std::int64_t k = 1; k <= config_.rounds; ++k) {
      ranks_.mix();
      note_consensus(k, ranks_.distance_from(start));
    }
    const std::vector<double> mean = ranks_.mean();
    for (std::size_t d = 0; d < mean.size(); ++d) {
      result_.mean_drift = std::max(result_.mean_drift, std::abs(mean[d] - start[d]));
    }
    result_.measured_factor = measured_factor();
    return std::move(result_);
  }

  SimulationResult training() {
    const SimulatedProblem& problem = *config_.problem;
    const double least = problem.loss(problem.optimum());
    result_.points.push_back(point_at(0, least));
    const std::int64_t steady_from = config_.rounds - std::max<std::int64_t>(1, config_.rounds / 4);
    std::int64_t num_steady = 0;
    for (std::int64_t step = 1; step <= config_.rounds; ++step) {
      ranks_.step([&](int rank, std::span<const double> x, std::span<double> g) {
        problem.gradient(rank, step, x, g);
      });
      const bool steady = step > steady_from;
      if (!steady && !keeps(step, config_.rounds)) continue;
      const SimulationPoint point = point_at(step, least);
      if (keeps(step, config_.rounds)) result_.points.push_back(point);
      if (!steady) continue;
      ++num_steady;
      result_.steady.consensus_distance += point.consensus_distance;
      result_.steady.excess_loss += point.excess_loss;
      result_.steady.distance_to_optimum += point.distance_to_optimum;
    }
    const auto count = static_cast<double>(std::max<std::int64_t>(1, num_steady));
    result_.steady = {config_.rounds, result_.steady.consensus_distance / count,
                      result_.steady.excess_loss / count,
                      result_.steady.distance_to_optimum / count};
    return std::move(result_);
  }

 private:
  void note_consensus(std::int64_t k, double distance) {
    distances_.push_back(distance);
    if (keeps(k, config_.rounds)) {
      result_.points.push_back({.round = k, .consensus_distance = distance});
    }
    const double first = distances_.front();
    if (!result_.rounds_to_thousandth && distance <= 1e-3 * first) {
      result_.rounds_to_thousandth = k;
    }
    if (!result_.exact_after && distance <= kRounding * first) result_.exact_after = k;
  }

  [[nodiscard]] std::optional<double> measured_factor() const {
    const std::int64_t period = config_.topology->period().value_or(1);
    std::int64_t end = 0;
    while (end < config_.rounds &&
           distances_[static_cast<std::size_t>(end + 1)] > 10.0 * kRounding * distances_.front()) {
      ++end;
    }
    const std::int64_t turns = end / period / 2;
    if (turns < 1) return std::nullopt;
    const std::int64_t last = end / period * period;
    const std::int64_t first = last - turns * period;
    const double ratio =
        distances_[static_cast<std::size_t>(last)] / distances_[static_cast<std::size_t>(first)];
    return std::pow(ratio, 1.0 / static_cast<double>(turns));
  }

  SimulationPoint point_at(std::int64_t step, double least) {
    const std::vector<double> mean = ranks_.mean();
    return {.round = step,
            .consensus_distance = ranks_.distance_from(mean),
            .excess_loss = config_.problem->loss(mean) - least,
            .distance_to_optimum = ranks_.distance_from(config_.problem->optimum())};
  }

  const SimulationConfig& config_;
  VirtualRanks ranks_;
  std::vector<double> distances_;
  SimulationResult result_;
};

}  // namespace

SimulationConfig read_simulation(const Options& options, const PlugIns& own) {
  SimulationConfig config;
  config.trains = options.read(simulate_options::kKind) == "sgd";
  const auto size = static_cast<int>(options.read(simulate_options::kWorldSize));
  IntegerOption local_size = simulate_options::kLocalWorldSize;
  local_size.rule.max = size;
  const auto local = static_cast<int>(options.read(local_size));
  if (local > 0 && size % local != 0) {
    options.fail("local_world_size",
                 concat(local, " does not divide the ", size, " ranks, allowed: a divisor of it"));
  }
  config.world = {.rank = 0, .size = size, .node_size = local > 0 ? local : size};
  config.rounds = options.read(simulate_options::kRounds);
  config.dim = options.read(simulate_options::kDim);
  config.seed = static_cast<std::uint64_t>(options.read(simulate_options::kSeed));
  config.codec = find_codec(options.read(kCodecName, "fp32", codec_names(own.codecs)), own.codecs);
  check_memory(options, config);
  config.topology =
      read_topology(options.named_section("topology"), config.world, "ring", own.topologies);
  if (config.trains) {
    read_training(options, own, config);
    check_memory(options, config);
  }
  for (const Codec* codec : {static_cast<const Codec*>(nullptr), config.codec}) {
    const std::string reason = config.algorithm.why_not(
        {.topology = config.topology.get(), .codec = codec, .optimizer = config.optimizer.get()});
    if (!reason.empty()) options.fail(codec == nullptr ? "algorithm" : "codec", reason);
  }
  check_links(options, config);
  if (config.codec != nullptr && config.algorithm.needs_topology() &&
      has_two_levels(*config.topology)) {
    options.fail("codec",
                 concat("the simulator encodes no rounds of two levels, which ",
                        config.topology->name(), " has, allowed: fp32, or local_world_size: 1"));
  }
  options.reject_unknown();
  return config;
}

SimulationResult simulate(const SimulationConfig& config, int num_threads) {
  Run run(config, num_threads > 0 ? num_threads : usable_cores().count());
  return config.trains ? run.training() : run.consensus();
}

}  // namespace gossamer::apps

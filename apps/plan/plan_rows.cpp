#include "apps/plan/plan_rows.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "apps/plan/exchange_schedule.hpp"
#include "base/error.hpp"
#include "base/options.hpp"
#include "base/registry.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"
#include "optim/codec.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

// Limits that keep the work for each topology below about a second.
constexpr std::int64_t kRankBuckets = 65'536;
constexpr std::int64_t kRankBucketSteps = 100'000;
constexpr std::int64_t kFewestSteps = 12;
constexpr std::int64_t kMostSteps = 96;
// How many times as many steps a common period of algorithm and topology may take.
constexpr std::int64_t kMostCommonSteps = 4;
// The largest world, in ranks, in which the rounds to the target are counted by following them.
constexpr int kFollowedRanks = 32;
constexpr double kNoGap = 1e-12;
// The longest period that a plan for several regions tries, in steps.
constexpr int kLongestPeriod = 256;

/// A topology with options that are not the defaults.
struct Variant {
  std::string name;
  std::string option = {};
  /// The second option; empty: none.
  std::string second = {};
  /// Ranks that the topology takes as one node (`comm.local_size`); 0: those of a host.
  int local_size = 0;
  /// The model follows whole periods, however long they are.
  bool whole_periods = false;
};

std::string label_of(const AlgorithmChoice& algorithm) {
  return algorithm.given().empty() ? algorithm.name()
                                   : concat(algorithm.name(), " {", algorithm.given(), "}");
}

/// A configuration's sections. A null variant: the algorithm has no topology.
std::string yaml_of(const AlgorithmChoice& algorithm, const Codec* codec, const Variant* variant) {
  const std::string& given = algorithm.given();
  std::string text = given.empty()
                         ? concat("algorithm: ", algorithm.name(), "\n")
                         : concat("algorithm: {name: ", algorithm.name(), ", ", given, "}\n");
  const int local_size = variant != nullptr ? variant->local_size : 0;
  if (local_size > 0 || codec != nullptr) text += "comm:\n";
  if (local_size > 0) text += concat("  local_size: ", local_size, "\n");
  if (codec != nullptr) text += concat("  codec: ", codec->name(), "\n");
  if (variant == nullptr) return text;
  text += concat("topology:\n  name: ", variant->name, "\n");
  for (const std::string_view option : {variant->option, variant->second}) {
    if (!option.empty()) text += concat("  ", option, "\n");
  }
  return text;
}

std::string label_of(const Variant& variant) {
  std::string label(variant.name);
  if (variant.local_size > 0) label += " by region";
  for (const std::string_view option : {variant.option, variant.second}) {
    if (!option.empty()) label += concat(", ", option);
  }
  return label;
}

/// Number of steps to follow a topology for: whole periods if these are short.
std::int64_t num_steps(const StepModel& model, std::int64_t period) {
  const std::int64_t per_step = std::int64_t{model.world.size} * std::ssize(model.bucket_bytes);
  const std::int64_t steps = std::clamp(kRankBucketSteps / per_step, kFewestSteps, kMostSteps);
  if (period > 2 * steps) return steps;
  return (steps + period - 1) / period * period;
}

/// Like rounds_to(), which takes many seconds where mixing is slow. In a large world this function
/// looks for an exact mean instead. Where there is none, the rounds follow from the spectral gap;
/// for 64 ranks this estimate is off by 5 % at most.
std::optional<RoundCount> rounds_to_target(const Topology& topology, int world_size,
                                           double target) {
  if (world_size <= kFollowedRanks) return rounds_to(topology, world_size, target);
  if (const auto exact = exact_after(topology, world_size)) return RoundCount{.rounds = *exact};
  if (!topology.period()) return rounds_to(topology, world_size, target);
  const auto gap = spectral_gap(topology, world_size);
  if (!gap || *gap <= kNoGap || *gap >= 1.0) return std::nullopt;
  const double periods = std::log(target) / std::log1p(-*gap);
  const double rounds = std::ceil(static_cast<double>(*topology.period()) * periods);
  return RoundCount{.rounds = static_cast<std::int64_t>(rounds), .estimated = true};
}

/// The topology of a variant, read as training will read it.
std::shared_ptr<const Topology> topology_of(const Variant& variant, const std::string& yaml,
                                            const PlanOptions& options) {
  World world = options.model.world;
  if (variant.local_size > 0) world.node_size = variant.local_size;
  const Options root = options.own.options(parse_yaml(yaml, "plan"));
  return read_topology(root.section("topology"), world);
}

/// The model of a row whose exchanges repeat after `period` rounds of a topology.
StepModel model_of(const PlanOptions& options, std::int64_t period, bool whole_periods) {
  StepModel model = options.model;
  model.num_steps = num_steps(model, period);
  if (whole_periods) model.num_steps = std::max(model.num_steps, period);
  return model;
}

void set_rounds(PlanRow& row, const std::optional<RoundCount>& rounds) {
  row.rounds = rounds;
  if (rounds) row.target_s = static_cast<double>(rounds->rounds) * row.step.step_s;
}

PlanRow gossip_row(const PlanOptions& options, const Variant& variant) {
  const std::string yaml = yaml_of("gossip", nullptr, &variant);
  const auto topology = topology_of(variant, yaml, options);
  const StepModel model = model_of(options, topology->period().value_or(1), variant.whole_periods);
  PlanRow row{.yaml = yaml, .label = label_of(variant), .step = predict_gossip(model, *topology)};
  set_rounds(row, rounds_to_target(*topology, model.world.size, options.target));
  return row;
}

PlanRow all_reduce_row(const PlanOptions& options) {
  PlanRow row{.yaml = "algorithm: allreduce\n",
              .label = "all-reduce",
              .step = predict_all_reduce(model_of(options, 1, false))};
  // One round is enough: the ranks are equal after every step.
  set_rounds(row, RoundCount{.rounds = 1});
  return row;
}

bool is_worth_a_row(const Variant& variant, const World& world) {
  const TopologyEntry* entry = find_row(topology_table(), variant.name);
  if (entry == nullptr || !entry->fits(world)) return false;
  if (variant.name != "hierarchical") return world.size > 2;
  // On one node, and with one rank on each, it is another topology under a second name.
  const int nodes = world.size / world.node_size;
  if (nodes < 3 || world.node_size < 2) return false;
  const bool needs_power = variant.option == "leaders: one-peer-exp";
  return !needs_power || (nodes & (nodes - 1)) == 0;
}

/// The variants that only a cluster in several regions needs.
void add_region_variants(const StepModel& model, std::vector<Variant>& variants) {
  const World& world = model.world;
  const Regions& regions = model.links.regions;
  if (regions.count() < 2) return;
  const int region_size = world.size / regions.count();
  const bool has_hosts = world.node_size > 1 && world.size / world.node_size > 2;
  const bool has_region_nodes =
      regions.are_equal() && region_size > 1 && region_size != world.node_size;
  for (int every = 1; every <= kLongestPeriod; every *= 4) {
    // Without rest it is complete.
    if (every > 1) {
      variants.push_back(
          {.name = "local-sgd", .option = concat("sit_out: ", every - 1), .whole_periods = true});
    }
    for (const char* const leaders : {"leaders: ring", "leaders: complete"}) {
      Variant variant{.name = "hierarchical",
                      .option = leaders,
                      .second = concat("leaders_every: ", every),
                      .whole_periods = true};
      if (has_hosts && every > 1) variants.push_back(variant);
      variant.local_size = region_size;
      if (has_region_nodes) variants.push_back(variant);
    }
  }
}

/// The topologies that fit the world.
std::vector<Variant> variants_for(const PlanOptions& options) {
  const StepModel& model = options.model;
  std::vector<Variant> variants;
  for (const auto& table : {topology_table(), options.own.topologies}) {
    for (const TopologyEntry& entry : table) {
      if (entry.needs_options || !entry.fits(model.world)) continue;
      variants.push_back({.name = std::string(entry.name)});
    }
  }
  for (const auto& [name, option] :
       {std::pair("base-k", "k: 3"), std::pair("hierarchical", "leaders: one-peer-exp"),
        std::pair("hierarchical", "leaders: complete")}) {
    const Variant variant{.name = name, .option = option};
    if (is_worth_a_row(variant, model.world)) variants.push_back(variant);
  }
  add_region_variants(model, variants);
  return variants;
}

/// The row of an algorithm; without a topology, and then without a variant, if it needs none.
PlanRow algorithm_row(const PlanOptions& options, const AlgorithmChoice& choice,
                      const ExchangeSchedule& schedule, const Variant* variant = nullptr,
                      const Topology* topology = nullptr) {
  PlanRow row{.yaml = yaml_of(choice, options.codec, variant), .label = label_of(choice)};
  if (variant != nullptr) row.label += concat(", ", label_of(*variant));
  const std::int64_t rounds = topology != nullptr ? topology->period().value_or(1) : 1;
  StepModel model = model_of(options, rounds, variant != nullptr && variant->whole_periods);
  // Whole periods of the algorithm, and of the topology too if there are not too many steps.
  const std::int64_t both = std::lcm(rounds, schedule.period());
  const std::int64_t period = both <= kMostCommonSteps * model.num_steps ? both : schedule.period();
  model.num_steps = (model.num_steps + period - 1) / period * period;
  // An average of the last period is waited for in this one.
  model.num_warmup = std::max(model.num_warmup, schedule.period());
  row.step = predict_schedule(model, schedule, topology, options.codec);
  if (choice.entry().equal_models == EqualModels::kAfterEveryStep) {
    set_rounds(row, RoundCount{.rounds = 1});
  } else if (topology != nullptr && options.codec == nullptr && schedule.only_mixes()) {
    set_rounds(row, rounds_to_target(*topology, model.world.size, options.target));
  }
  return row;
}

/// The rows of one algorithm on every topology that suits it.
void add_algorithm_rows(const PlanOptions& options, const AlgorithmChoice& choice,
                        const Optimizer& optimizer, std::vector<PlanRow>& rows) {
  const World& world = options.model.world;
  std::vector<std::int64_t> numel;
  for (const double bytes : options.model.bucket_bytes) {
    numel.push_back(static_cast<std::int64_t>(bytes / 4.0));
  }
  ExchangeSchedule::Setup setup{.algorithm = choice,
                                .optimizer = optimizer,
                                .world_size = world.size,
                                .codec = options.codec,
                                .bucket_numel = std::move(numel)};
  if (!choice.needs_topology()) {
    const std::string why = choice.why_not({.codec = options.codec, .optimizer = &optimizer});
    if (!why.empty()) throw ConfigError(concat("--algorithm ", choice.text(), ": ", why));
    rows.push_back(algorithm_row(options, choice, ExchangeSchedule(setup)));
    return;
  }
  // By the size of a node.
  std::map<int, ExchangeSchedule> schedules;
  std::string reason = "no topology fits";
  for (const Variant& variant : variants_for(options)) {
    const auto topology = topology_of(variant, yaml_of(choice, options.codec, &variant), options);
    const std::string why = choice.why_not(
        {.topology = topology.get(), .codec = options.codec, .optimizer = &optimizer});
    if (!why.empty()) {
      reason = why;
      continue;
    }
    setup.node_size =
        choice.topologies() == TopologyKind::kNodes ? topology->round(0).node_size : 1;
    auto schedule = schedules.find(setup.node_size);
    if (schedule == schedules.end()) {
      schedule = schedules.emplace(setup.node_size, setup).first;
    }
    rows.push_back(algorithm_row(options, choice, schedule->second, &variant, topology.get()));
  }
  if (schedules.empty()) {
    throw ConfigError(concat("--algorithm ", choice.text(), " runs on no topology that fits ",
                             world.size, " ranks: ", reason));
  }
}

/// Those of a plan under a codec that names no algorithm.
std::vector<AlgorithmChoice> usual_algorithms(const Codec* codec) {
  std::vector<AlgorithmChoice> algorithms = {"allreduce", "gossip"};
  if (codec == nullptr) return algorithms;
  std::erase_if(algorithms,
                [codec](const AlgorithmChoice& choice) { return !choice.takes(*codec); });
  if (!algorithms.empty()) return algorithms;
  throw ConfigError(concat("--codec ", codec->name(),
                           " goes with neither allreduce nor gossip; name an algorithm, as "
                           "--algorithm '{name: outer, kind: diloco, momentum: 0, lr: 1}'"));
}

}  // namespace

std::vector<double> planned_buckets(double model_bytes, double bucket_bytes, int world_size) {
  const std::int64_t most = kRankBuckets / std::clamp(world_size, 1, kMostPlannedRanks);
  return split_into_buckets(model_bytes, bucket_bytes, std::min<std::int64_t>(most, 256));
}

std::vector<PlanRow> plan_rows(const PlanOptions& options) {
  std::vector<PlanRow> rows;
  if (options.algorithms.empty() && options.codec == nullptr) {
    rows.push_back(all_reduce_row(options));
    for (const Variant& variant : variants_for(options)) {
      rows.push_back(gossip_row(options, variant));
    }
  } else {
    const auto optimizer = options.optimizer ? options.optimizer : make_optimizer("adamw");
    std::vector<AlgorithmChoice> algorithms = options.algorithms;
    if (algorithms.empty()) algorithms = usual_algorithms(options.codec);
    for (const AlgorithmChoice& choice : algorithms) {
      add_algorithm_rows(options, choice, *optimizer, rows);
    }
  }
  return rows;
}

}  // namespace gossamer::apps

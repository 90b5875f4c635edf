#include "apps/lab/plan/plan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <numeric>
#include <tuple>

#include <nlohmann/json.hpp>

#include "apps/lab/plan/traffic.hpp"
#include "base/error.hpp"
#include "base/registry.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

// Limits that keep the work for each topology below about a second.
constexpr std::int64_t kRankBuckets = 65'536;
constexpr std::int64_t kRankBucketSteps = 100'000;
constexpr std::int64_t kFewestSteps = 12;
constexpr std::int64_t kMostSteps = 96;
// The largest world, in ranks, in which the rounds to the target are counted by following them.
constexpr int kFollowedRanks = 32;
constexpr double kNoGap = 1e-12;
// The longest period that a plan for several regions tries, in steps.
constexpr int kLongestPeriod = 256;

/// A topology with options that are not the defaults.
struct Variant {
  std::string_view name;
  std::string_view option = {};
  /// The second option; empty: none.
  std::string_view second = {};
  /// Ranks that the topology takes as one node (`comm.local_size`); 0: those of a host.
  int local_size = 0;
  /// The model follows whole periods, however long they are.
  bool whole_periods = false;
};
constexpr std::array kVariants = {
    Variant{"base-k", "k: 3"},
    Variant{"hierarchical", "leaders: one-peer-exp"},
    Variant{"hierarchical", "leaders: complete"},
};

std::string gossip_yaml(const Variant& variant) {
  std::string text = "algorithm: gossip\n";
  if (variant.local_size > 0) text += concat("comm:\n  local_size: ", variant.local_size, "\n");
  text += concat("topology:\n  name: ", variant.name, "\n");
  for (const std::string_view option : {variant.option, variant.second}) {
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

double sum_of(const std::vector<double>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), 0.0);
}

/// Bytes per step that leave a region, mean over a period or over `num_rounds` rounds.
double bytes_across(const StepModel& model, const Topology& topology, std::int64_t num_rounds) {
  if (model.links.regions.count() < 2) return 0.0;
  const LinkTable links(model.world, model.links);
  const std::int64_t count = std::min(topology.period().value_or(num_rounds), num_rounds);
  double share = 0.0;
  for (std::int64_t k = 0; k < count; ++k) {
    share += share_across(traffic_of(topology.round(k), links), links);
  }
  return share / static_cast<double>(count) * sum_of(model.bucket_bytes);
}

PlanRow gossip_row(const PlanOptions& options, const Variant& variant) {
  const std::string yaml = gossip_yaml(variant);
  // Read the configuration as training will read it.
  const Options root(parse_yaml(yaml, "plan"));
  World world = options.model.world;
  if (variant.local_size > 0) world.node_size = variant.local_size;
  const auto topology = read_topology(root.section("topology"), world);
  StepModel model = options.model;
  const std::int64_t period = topology->period().value_or(1);
  model.num_steps = num_steps(model, period);
  if (variant.whole_periods) model.num_steps = std::max(model.num_steps, period);
  PlanRow row{.yaml = yaml,
              .label = label_of(variant),
              .step = predict_gossip(model, *topology),
              .rounds = rounds_to_target(*topology, model.world.size, options.target)};
  if (row.rounds) row.target_s = static_cast<double>(row.rounds->rounds) * row.step.step_s;
  row.bytes_across = bytes_across(model, *topology, model.num_steps);
  return row;
}

PlanRow all_reduce_row(const PlanOptions& options) {
  StepModel model = options.model;
  model.num_steps = num_steps(model, 1);
  const StepPrediction step = predict_all_reduce(model);
  const LinkTable links(model.world, model.links);
  // One round is enough: the ranks are equal after every step.
  return {
      .yaml = "algorithm: allreduce\n",
      .label = "all-reduce",
      .step = step,
      .rounds = RoundCount{.rounds = 1},
      .target_s = step.step_s,
      .bytes_across = share_across(all_reduce_traffic(links), links) * sum_of(model.bucket_bytes)};
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

/// The rows that only a cluster in several regions needs.
void add_period_rows(const PlanOptions& options, std::vector<PlanRow>& rows) {
  const World& world = options.model.world;
  const Regions& regions = options.model.links.regions;
  if (regions.count() < 2) return;
  const int region_size = world.size / regions.count();
  for (int every = 1; every <= kLongestPeriod; every *= 4) {
    const std::string rest = concat("sit_out: ", every - 1);
    const std::string period = concat("leaders_every: ", every);
    // Without rest it is complete.
    if (every > 1) {
      rows.push_back(
          gossip_row(options, {.name = "local-sgd", .option = rest, .whole_periods = true}));
    }
    for (const std::string_view leaders : {"leaders: ring", "leaders: complete"}) {
      Variant variant{
          .name = "hierarchical", .option = leaders, .second = period, .whole_periods = true};
      const bool has_hosts = world.node_size > 1 && world.size / world.node_size > 2;
      if (has_hosts && every > 1) rows.push_back(gossip_row(options, variant));
      if (!regions.are_equal() || region_size < 2 || region_size == world.node_size) continue;
      variant.local_size = region_size;
      rows.push_back(gossip_row(options, variant));
    }
  }
}

std::string percent(double share) { return concat(shortest(100.0 * share), " %"); }

std::string one_decimal(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

std::string milliseconds(double seconds) { return one_decimal(1e3 * seconds); }

/// Always true for other orders than kBudget.
bool is_in_budget(const PlanRow& row, const Plan& plan, const PlanOptions& options) {
  return options.rank_by != RankBy::kBudget ||
         row.step.step_s <= (1.0 + options.budget) * plan.local_s;
}

std::string recommend(const Plan& plan, const PlanOptions& options) {
  const PlanRow& best = plan.rows.front();
  const auto shortest_row =
      std::ranges::min_element(plan.rows, {}, [](const PlanRow& row) { return row.step.step_s; });
  if (options.model.world.size == 1)
    return "One rank alone exchanges nothing; any topology will do.";
  const std::string target = shortest(options.target);
  std::string text;
  const bool in_budget = is_in_budget(best, plan, options);
  if (options.rank_by != RankBy::kStep && best.target_s && in_budget) {
    const std::string which =
        options.rank_by == RankBy::kTarget
            ? ""
            : concat("of the rows whose steps take at most ", percent(options.budget),
                     " longer than without communication, ");
    text =
        concat("Take ", best.label, ": ", which, "it is the first to shrink the ranks' distance ",
               "from their mean to ", target, " of its start, after ", milliseconds(*best.target_s),
               " ms (", best.rounds->rounds, best.rounds->rounds == 1 ? " step of " : " steps of ",
               milliseconds(best.step.step_s), " ms)");
    if (shortest_row->step.step_s < 0.995 * best.step.step_s) {
      text += concat("; the shortest steps are those of ", shortest_row->label, ", ",
                     milliseconds(shortest_row->step.step_s), " ms");
    }
    return text + ".";
  }
  const std::string missed = in_budget ? ""
                                       : concat("no steps take at most ", percent(options.budget),
                                                " longer than without communication; ");
  text = concat("Take ", best.label, ": ", missed, "its steps are the shortest, ",
                milliseconds(best.step.step_s), " ms");
  if (best.target_s) {
    text += concat(", and the ranks' distance from their mean has shrunk to ", target,
                   " of its start after ", milliseconds(*best.target_s), " ms");
  }
  return text + ".";
}

void check(const PlanOptions& options) {
  const World& world = options.model.world;
  if (world.size < 1 || world.size > kMostPlannedRanks) {
    throw ConfigError(
        "command line", "--world-size",
        concat(world.size, " ranks cannot be planned for, allowed: 1 to ", kMostPlannedRanks));
  }
  if (world.node_size < 1 || world.size % world.node_size != 0) {
    throw ConfigError("command line", "--local-world-size",
                      concat(world.node_size, " does not divide the world size ", world.size,
                             ", allowed: a divisor of it"));
  }
  if (!(options.target > 0.0 && options.target < 1.0)) {
    throw ConfigError("command line", "--target",
                      concat(options.target, " is no target, allowed: above 0 and below 1"));
  }
}

/// Sorts the rows by the options' `rank_by`; rows that never reach the target come last.
void rank(Plan& plan, const PlanOptions& options) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::ranges::stable_sort(plan.rows, {}, [&](const PlanRow& row) {
    const double target_s = row.target_s.value_or(kNever);
    // Treat times that differ by less than a nanosecond as equal; the other column then decides.
    const double step_s = std::round(1e9 * row.step.step_s);
    const bool in_budget = is_in_budget(row, plan, options);
    return options.rank_by != RankBy::kStep && in_budget
               ? std::tuple(false, std::round(1e9 * target_s), step_s)
               : std::tuple(!in_budget, step_s, target_s);
  });
}

}  // namespace

std::vector<double> planned_buckets(double model_bytes, double bucket_bytes, int world_size) {
  const std::int64_t most = kRankBuckets / std::clamp(world_size, 1, kMostPlannedRanks);
  return split_into_buckets(model_bytes, bucket_bytes, std::min<std::int64_t>(most, 256));
}

Plan make_plan(const PlanOptions& options) {
  check(options);
  const World& world = options.model.world;
  Plan plan;
  plan.local_s = predict_local(options.model).step_s;
  plan.rows.push_back(all_reduce_row(options));
  for (const TopologyEntry& entry : topology_table()) {
    if (entry.needs_options || !entry.fits(world)) continue;
    plan.rows.push_back(gossip_row(options, {.name = entry.name}));
  }
  for (const Variant& variant : kVariants) {
    if (!is_worth_a_row(variant, world)) continue;
    plan.rows.push_back(gossip_row(options, variant));
  }
  add_period_rows(options, plan.rows);
  rank(plan, options);
  plan.recommendation = recommend(plan, options);
  return plan;
}

nlohmann::ordered_json to_json(const Plan& plan) {
  nlohmann::ordered_json json;
  json["local_ms"] = 1e3 * plan.local_s;
  json["rows"] = nlohmann::ordered_json::array();
  for (const PlanRow& row : plan.rows) {
    nlohmann::ordered_json entry = {{"topology", row.label},
                                    {"step_ms", 1e3 * row.step.step_s},
                                    {"wait_ms", 1e3 * row.step.wait_s},
                                    {"rounds_to_target", nullptr},
                                    {"rounds_estimated", false},
                                    {"target_ms", nullptr},
                                    {"bytes_across", row.bytes_across},
                                    {"yaml", row.yaml}};
    if (row.rounds) {
      entry["rounds_to_target"] = row.rounds->rounds;
      entry["rounds_estimated"] = row.rounds->estimated;
      entry["target_ms"] = 1e3 * *row.target_s;
    }
    json["rows"].push_back(std::move(entry));
  }
  json["recommendation"] = plan.recommendation;
  json["yaml"] = plan.rows.front().yaml;
  return json;
}

std::string to_text(const Plan& plan, const PlanOptions& options) {
  std::size_t width = 8;
  for (const PlanRow& row : plan.rows) width = std::max(width, row.label.size());
  const bool has_regions = options.model.links.regions.count() > 1;
  const auto line = [&](std::string_view label, std::vector<std::string> cells) {
    if (!has_regions) cells.pop_back();
    std::string text(label);
    text.resize(width, ' ');
    for (const std::string& cell : cells) {
      text += std::string(cell.size() < 12 ? 14 - cell.size() : 2, ' ') + cell;
    }
    return text + "\n";
  };
  std::string text =
      line("topology", {"ms per step", "ms waiting", "rounds", "ms to target", "MB across"});
  for (const PlanRow& row : plan.rows) {
    const std::string rounds =
        row.rounds ? concat(row.rounds->estimated ? "about " : "", row.rounds->rounds) : "unknown";
    text += line(row.label, {milliseconds(row.step.step_s), milliseconds(row.step.wait_s), rounds,
                             row.target_s ? milliseconds(*row.target_s) : "unknown",
                             one_decimal(1e-6 * row.bytes_across)});
  }
  if (has_regions)
    text += "MB across: megabytes that leave a region in a step, all nodes together\n";
  return concat(text, "Without communication a step takes ", milliseconds(plan.local_s),
                " ms.\nrounds: until the ranks' distance from their mean has shrunk to ",
                shortest(options.target), " of its start\n\n", plan.recommendation, "\n\n",
                plan.rows.front().yaml);
}

}  // namespace gossamer::apps

#include "apps/plan/plan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "apps/plan/plan_rows.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

std::string percent(double share) { return concat(shortest(100.0 * share), " %"); }

std::string one_decimal(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

std::string milliseconds(double seconds) { return one_decimal(1e3 * seconds); }

bool has_algorithms(const PlanOptions& options) {
  return !options.algorithms.empty() || options.codec != nullptr;
}

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
               ? std::tuple(false, std::round(1e9 * target_s), step_s, row.step.bytes_sent)
               : std::tuple(!in_budget, step_s, target_s, row.step.bytes_sent);
  });
}

}  // namespace

Plan make_plan(const PlanOptions& given) {
  check(given);
  PlanOptions options = given;
  Plan plan;
  plan.local_s = predict_local(options.model).step_s;
  plan.rows = plan_rows(options);
  const bool knows_rounds =
      std::ranges::all_of(plan.rows, [](const PlanRow& row) { return row.rounds.has_value(); });
  // Otherwise the only row whose rounds are known would win.
  if (has_algorithms(options) && !knows_rounds) options.rank_by = RankBy::kStep;
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
                                    {"bytes_sent", row.step.bytes_sent},
                                    {"bytes_across", row.step.bytes_across},
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
  std::size_t width = 9;
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
  const std::string_view names = has_algorithms(options) ? "algorithm" : "topology";
  std::string text =
      line(names, {"ms per step", "ms waiting", "MB sent", "rounds", "ms to target", "MB across"});
  for (const PlanRow& row : plan.rows) {
    const std::string rounds =
        row.rounds ? concat(row.rounds->estimated ? "about " : "", row.rounds->rounds) : "unknown";
    text += line(row.label, {milliseconds(row.step.step_s), milliseconds(row.step.wait_s),
                             one_decimal(1e-6 * row.step.bytes_sent), rounds,
                             row.target_s ? milliseconds(*row.target_s) : "unknown",
                             one_decimal(1e-6 * row.step.bytes_across)});
  }
  text += "MB sent: megabytes that a rank sends in a step, mean over the ranks\n";
  if (has_algorithms(options)) {
    text +=
        "rounds are unknown for algorithms that do more than mix, and for encoded messages; a plan "
        "with such rows is ordered by the time of a step\n";
  }
  if (has_regions) {
    text += "MB across: megabytes that leave a region in a step, all nodes together\n";
  }
  return concat(text, "Without communication a step takes ", milliseconds(plan.local_s),
                " ms.\nrounds: until the ranks' distance from their mean has shrunk to ",
                shortest(options.target), " of its start\n\n", plan.recommendation, "\n\n",
                plan.rows.front().yaml);
}

}  // namespace gossamer::apps

#include "apps/lab/plan/plan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "apps/lab/plan/plan_rows.hpp"
#include "apps/lab/plan/ways.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"
#include "comm/backends.hpp"

namespace gossamer::apps {
namespace {

std::string percent(double share) { return concat(shortest(100.0 * share), " %"); }

std::string milliseconds(double seconds) { return with_digits(1e3 * seconds, 1); }

std::string duration(double seconds) {
  return seconds < 1.0 ? concat(milliseconds(seconds), " ms")
                       : concat(with_digits(seconds, 1), " s");
}

bool is_all_reduce_of_floats(const PlanRow& row) {
  return row.exchange == "all-reduce" && row.codec == "fp32";
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
}

/// Sorts rows of plainer ways, and those with less traffic, before others that are as good.
void rank(std::vector<PlanRow>& rows) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::string> ways;
  const auto way_of = [&](const PlanRow& row) {
    const std::string way = concat(row.exchange, row.codec, row.late);
    const auto found = std::ranges::find(ways, way);
    if (found != ways.end()) return found - ways.begin();
    ways.push_back(way);
    return std::ssize(ways) - 1;
  };
  const auto key_of = [&](const PlanRow& row) {
    const int kind = !row.expected_gap ? 1 : row.helps() ? 0 : 2;
    const auto way = static_cast<double>(way_of(row));
    const double step_s = std::round(1e9 * row.step.step_s);
    const double rounds = row.rounds ? static_cast<double>(row.rounds->rounds) : kNever;
    const double bytes = std::round(row.step.bytes_sent);
    // Where no steps are within the budget, the shortest come first.
    if (!row.fits) return std::tuple(kind == 1 ? 4 : 3, step_s, 0.0, way, bytes, rounds);
    if (kind == 1) return std::tuple(kind, rounds * step_s, step_s, way, bytes, rounds);
    // Our measurements tell no smaller gaps, and no user notices steps 3 % shorter.
    const double added = std::floor((1.0 / row.efficiency - 1.0) / 0.03);
    return std::tuple(kind, std::round(100.0 * *row.expected_gap), added, way, bytes, rounds);
  };
  std::vector<std::pair<decltype(key_of(rows.front())), PlanRow>> sorted;
  for (PlanRow& row : rows) sorted.emplace_back(key_of(row), std::move(row));
  std::ranges::stable_sort(sorted, {}, [](const auto& each) { return each.first; });
  std::ranges::transform(sorted, rows.begin(), [](auto& each) { return std::move(each.second); });
}

/// What the best row costs in accuracy.
std::string price(const PlanRow& row) {
  if (!row.expected_gap) {
    return "We have not measured how much accuracy it costs against all-reduce.";
  }
  if (*row.expected_gap == 0.0) return "It learns as much in a step as all-reduce in float32.";
  if (row.helps()) {
    return concat("Our runs of a gpt of 0.9 million parameters ended ",
                  with_digits(*row.expected_gap, 2),
                  " above all-reduce's loss after as many steps, and a rank that trains alone ",
                  with_digits(kAloneGap, 2), "; models of other sizes may differ.");
  }
  return "Exchanges so rare were no better than none for a gpt of 0.9 million parameters, if our "
         "runs of 1600 steps with averages every 1 to 40 are continued. The links are too slow for "
         "this model, unless the run is much longer than ours.";
}

std::string recommend(const Plan& plan, const PlanOptions& options) {
  if (options.model.world.size == 1)
    return "One rank alone exchanges nothing; any algorithm and topology will do.";
  const PlanRow& best = plan.rows.front();
  std::string text =
      concat("Take ", best.label(), ": a step takes ", milliseconds(best.step.step_s),
             " ms, where one without communication takes ", milliseconds(plan.local_s),
             " ms, and a rank sends ", human_bytes(best.step.bytes_sent), " in it.");
  if (!best.fits) {
    text += concat(" No steps of this plan take at most ", percent(options.budget),
                   " longer than without communication; these are the shortest",
                   best.expected_gap ? " of the ways that we have measured." : ".");
  }
  text += concat(" ", price(best));
  const auto all_reduce = std::ranges::find_if(plan.rows, is_all_reduce_of_floats);
  if (all_reduce != plan.rows.end() && !is_all_reduce_of_floats(best)) {
    text += concat(" With all-reduce in float32 a step takes ",
                   milliseconds(all_reduce->step.step_s), " ms.");
  }
  return text;
}

std::vector<std::string> warnings_of(const PlanRow& best) {
  const double timeout_s = LaunchOptions{}.timeout_s;
  if (best.exchange_s <= timeout_s) return {};
  return {
      concat("An exchange of the whole model takes ", duration(best.exchange_s),
             ", and comm.timeout_s is ", shortest(timeout_s),
             " s unless you change it. With the backend tcp every byte is progress. With NCCL "
             "the exchange of a bucket must end in that time, and with MPI a message of 32 MiB: "
             "take smaller buckets there, or give comm.timeout_s: ",
             shortest(std::ceil(best.exchange_s / 100.0) * 200.0), ".")};
}

/// A scalar of YAML with its type.
nlohmann::ordered_json json_of(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kMapping) {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    for (const auto& [key, value] : node.entries) json[key.name] = json_of(value);
    return json;
  }
  if (node.kind == YamlNode::Kind::kSequence) {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const YamlNode& item : node.items) json.push_back(json_of(item));
    return json;
  }
  if (node.kind == YamlNode::Kind::kNull) return nullptr;
  const auto parsed = nlohmann::ordered_json::parse(node.scalar, nullptr, false);
  const bool is_typed = !node.quoted && (parsed.is_number() || parsed.is_boolean());
  return is_typed ? parsed : nlohmann::ordered_json(node.scalar);
}

constexpr std::size_t kNumColumns = 11;
using Cells = std::array<std::string, kNumColumns>;

Cells cells_of(const PlanRow& row) {
  const std::string rounds =
      row.rounds ? concat(row.rounds->estimated ? "about " : "", row.rounds->rounds) : "-";
  const std::string loss = !row.expected_gap ? "-"
                           : !row.helps()    ? "as alone"
                                             : concat("+", with_digits(*row.expected_gap, 2));
  return {row.exchange,
          row.topology.empty() ? "-" : row.topology,
          row.codec,
          std::to_string(row.every),
          std::to_string(row.late),
          milliseconds(row.step.step_s),
          concat(with_digits(100.0 * row.efficiency, 1), " %"),
          with_digits(1e-6 * row.step.bytes_sent, 2),
          duration(row.exchange_s),
          rounds,
          loss};
}

/// The rows of the table: of several topologies of a way, the best one, unless the user has named
/// the algorithms.
std::vector<const PlanRow*> shown(const Plan& plan, const PlanOptions& options) {
  std::vector<const PlanRow*> rows;
  std::set<std::tuple<std::string, std::string, bool>> seen;
  for (const PlanRow& row : plan.rows) {
    const bool is_first = seen.emplace(row.exchange, row.codec, row.late > 1).second;
    if (is_first || !options.algorithms.empty()) rows.push_back(&row);
  }
  return rows;
}

std::string table(const std::vector<const PlanRow*>& rows, bool has_regions) {
  std::vector<std::vector<std::string>> lines;
  const auto add = [&](const Cells& cells, const std::string& across) {
    lines.emplace_back(cells.begin(), cells.end());
    if (has_regions) lines.back().push_back(across);
  };
  add({"exchange", "topology", "codec", "every", "late", "ms per step", "speed", "MB per step",
       "exchange takes", "rounds", "loss"},
      "MB across");
  for (const PlanRow* const row : rows) {
    add(cells_of(*row), with_digits(1e-6 * row->step.bytes_across, 2));
  }
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string space(widths[i] - line[i].size(), ' ');
      const bool is_word = i < 3;
      text += (i > 0 ? "  " : "") + (is_word ? line[i] + space : space + line[i]);
    }
    text += "\n";
  }
  return text;
}

}  // namespace

std::vector<double> planned_buckets(double model_bytes, double bucket_bytes, int world_size) {
  // This limit keeps the work for each topology below about a second.
  constexpr std::int64_t kRankBuckets = 65'536;
  const std::int64_t most = kRankBuckets / std::clamp(world_size, 1, kMostPlannedRanks);
  return split_into_buckets(model_bytes, bucket_bytes, std::min<std::int64_t>(most, 256));
}

Plan make_plan(const PlanOptions& options) {
  check(options);
  Plan plan{.rows = plan_rows(options), .local_s = predict_local(options.model).step_s};
  rank(plan.rows);
  plan.recommendation = recommend(plan, options);
  plan.warnings = warnings_of(plan.rows.front());
  return plan;
}

nlohmann::ordered_json to_json(const Plan& plan) {
  nlohmann::ordered_json json;
  json["local_ms"] = 1e3 * plan.local_s;
  json["rows"] = nlohmann::ordered_json::array();
  for (const PlanRow& row : plan.rows) {
    nlohmann::ordered_json entry = {{"exchange", row.exchange},
                                    {"topology", row.topology},
                                    {"codec", row.codec},
                                    {"every", row.every},
                                    {"late", row.late},
                                    {"step_ms", 1e3 * row.step.step_s},
                                    {"wait_ms", 1e3 * row.step.wait_s},
                                    {"efficiency", row.efficiency},
                                    {"bytes_sent", row.step.bytes_sent},
                                    {"bytes_across", row.step.bytes_across},
                                    {"exchange_s", row.exchange_s},
                                    {"allowed_s", row.allowed_s},
                                    {"fits", row.fits},
                                    {"expected_gap", nullptr},
                                    {"helps", row.helps()},
                                    {"rounds", nullptr},
                                    {"rounds_estimated", false},
                                    {"yaml", row.yaml}};
    if (row.expected_gap) entry["expected_gap"] = *row.expected_gap;
    if (row.rounds) {
      entry["rounds"] = row.rounds->rounds;
      entry["rounds_estimated"] = row.rounds->estimated;
    }
    entry["options"] = json_of(parse_yaml(row.yaml, "plan"));
    json["rows"].push_back(std::move(entry));
  }
  json["recommendation"] = plan.recommendation;
  json["warnings"] = plan.warnings;
  json["yaml"] = json["rows"].front()["yaml"];
  json["options"] = json["rows"].front()["options"];
  return json;
}

std::string to_text(const Plan& plan, const PlanOptions& options) {
  const bool has_regions = options.model.links.regions.count() > 1;
  const std::vector<const PlanRow*> rows = shown(plan, options);
  std::string text = table(rows, has_regions);
  text +=
      "every: steps between two exchanges, the fewest within the budget, else the most that were "
      "tried\nlate: steps that an exchange may travel before ranks wait\n"
      "speed: of a step without communication, divided by that of this step\n"
      "MB per step: megabytes that a rank sends, mean over ranks and steps\n"
      "rounds: until the ranks' distance from their mean is a thousandth of its start\n"
      "loss: how far a gpt of 0.9 million parameters ended above all-reduce after as many steps; "
      "as "
      "alone: no better than without exchange; -: not measured\n";
  if (has_regions)
    text += "MB across: megabytes that leave a region in a step, all nodes together\n";
  if (rows.size() < plan.rows.size()) {
    text +=
        "Every way is on its best topology: --algorithm gossip shows gossip on all, --json all "
        "rows.\n";
  }
  text += concat("Without communication a step takes ", milliseconds(plan.local_s), " ms.\n\n",
                 plan.recommendation, "\n");
  for (const std::string& warning : plan.warnings) text += concat("Warning: ", warning, "\n");
  return concat(text, "\n", plan.rows.front().yaml);
}

}  // namespace gossamer::apps

#include "apps/records/report.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <set>

#include "apps/records/chart.hpp"
#include "apps/records/members.hpp"
#include "apps/records/run_folder.hpp"
#include "apps/records/timeline_picture.hpp"
#include "base/error.hpp"
#include "base/markup.hpp"
#include "base/options.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"
#include "core/checkpoint/whole_file.hpp"
#include "topology/registry.hpp"
#include "topology/topology_picture.hpp"

namespace gossamer::apps {
namespace {

using Runs = std::vector<RunRecord>;
using Records = std::vector<nlohmann::ordered_json>;

constexpr std::string_view kStyle = R"(
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1200px; margin: 2em auto;
       padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; margin: .6em 0; } th, td { text-align: left; padding: .2em .9em .2em 0;
       border-bottom: 1px solid #ddd; vertical-align: top; } td.number { text-align: right; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 1em; }
figure { margin: 0; } figcaption span { margin-right: 1.2em; font-size: .85em; white-space: nowrap; }
figcaption i { display: inline-block; width: .8em; height: .8em; margin-right: .35em; }
figcaption i.line { width: 1.8em; height: 0; vertical-align: middle; }
div.title { font-size: 13px; font-weight: 600; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: #444; }
svg text.title { font-size: 13px; font-weight: 600; fill: #222; }
svg .grid { stroke: #e4e4e4; } svg .axis { stroke: #888; }
svg .mark { stroke-width: 1.4; stroke-dasharray: 2 3; }
svg path { fill: none; stroke-width: 1.6; } .topology img { max-width: 100%; }
.fault { color: #a33; }
)";

constexpr const char* kMeanLoss = "loss_mean_model";

std::string cell(const std::string& text, bool number = false) {
  return concat(number ? "<td class=\"number\">" : "<td>", escaped(text), "</td>");
}

/// The parts of a page under a heading; empty if there are none.
std::string part_under(std::string_view heading, const std::string& parts) {
  return parts.empty() ? "" : concat("<h2>", heading, "</h2>\n", parts);
}

std::string in_block(std::string_view kind, const std::string& parts) {
  return parts.empty() ? "" : concat("<div class=\"", kind, "\">\n", parts, "</div>\n");
}

std::string percent(double value) {
  return std::isfinite(value) ? concat(short_number(100.0 * value), " %") : "–";
}

/// The record with the newest evaluation: that of the end, where the run was evaluated then, or the
/// last one so far.
const nlohmann::ordered_json& last_evaluation(const RunRecord& run) {
  static const nlohmann::ordered_json kNone;
  const bool ends_with_one = run.final_record.is_object() && run.final_record.contains(kMeanLoss);
  if (ends_with_one) return run.final_record;
  return run.evaluations.empty() ? kNone : run.evaluations.back();
}

/// The last number under a key among the records of steps; NaN if there is none.
double last_in_steps(const RunRecord& run, const std::string& key) {
  for (auto record = run.steps.rbegin(); record != run.steps.rend(); ++record) {
    if (const double value = number_in(*record, key); std::isfinite(value)) return value;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

/// A number of the last evaluation; before the first evaluation, the number of the last record of a
/// step.
double newest(const RunRecord& run, const std::string& key) {
  const double value = number_in(last_evaluation(run), key);
  return std::isfinite(value) ? value : last_in_steps(run, key);
}

/// The loss of the mean model; before the first evaluation the last one of training, with a word
/// that says so.
std::string loss_of(const RunRecord& run) {
  const double loss = number_in(last_evaluation(run), kMeanLoss);
  if (std::isfinite(loss)) return short_number(loss);
  const double training = last_in_steps(run, "loss");
  return std::isfinite(training) ? concat(short_number(training), " (training)") : "–";
}

/// Of the whole run; of one that has not ended, of its last record.
std::string samples_per_s_of(const RunRecord& run) {
  const double value = number_in(run.final_record, "samples_per_s");
  return short_number(std::isfinite(value) ? value : last_in_steps(run, "samples_per_s"));
}

std::string state_of(const RunRecord& run) {
  const std::string state = text_in(run.status, "state");
  const std::string step = text_in(run.status, "diverged_at");
  return step.empty() ? state : concat(state, ", diverged after step ", step);
}

/// The number of steps that a run has made, also where it has no status.
std::string steps_of(const RunRecord& run) {
  const std::string step = text_in(run.status, "step");
  return step.empty() ? text_in(run.final_record, "step") : step;
}

struct Column {
  const char* heading;
  bool is_number;
  std::string (*text)(const RunRecord& run);
};

constexpr Column kColumns[] = {
    {"run", false, [](const RunRecord& run) { return run.name; }},
    {"state", false, state_of},
    {"algorithm", false, [](const RunRecord& run) { return run.value("algorithm.name"); }},
    {"topology", false, [](const RunRecord& run) { return run.value("topology.name"); }},
    {"optimizer", false,
     [](const RunRecord& run) {
       return concat(run.value("optimizer.name"), ", lr ", run.value("optimizer.lr"));
     }},
    {"ranks", true, num_ranks_of},
    {"steps", true, steps_of},
    {"accuracy", true,
     [](const RunRecord& run) {
       return percent(number_in(last_evaluation(run), "accuracy_mean_model"));
     }},
    {"loss", true, loss_of},
    {"consensus distance", true,
     [](const RunRecord& run) { return short_number(newest(run, "consensus_distance")); }},
    {"samples / s", true, samples_per_s_of},
    {"bytes / step and rank", true,
     [](const RunRecord& run) {
       const double bytes = number_in(run.final_record, "bytes_sent_per_step");
       return std::isfinite(bytes) ? human_bytes(bytes) : "–";
     }},
};

/// A column that is empty for all runs is left out.
std::string summary_table(const Runs& runs) {
  std::vector<const Column*> columns;
  for (const Column& column : kColumns) {
    const auto has_text = [&column](const RunRecord& run) {
      const std::string text = column.text(run);
      return !text.empty() && text != "–";
    };
    if (std::ranges::any_of(runs, has_text)) columns.push_back(&column);
  }
  std::string html = "<table><tr>";
  for (const Column* column : columns) html += concat("<th>", column->heading, "</th>");
  html += "</tr>\n";
  for (const RunRecord& run : runs) {
    html += "<tr>";
    for (const Column* column : columns) html += cell(column->text(run), column->is_number);
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

std::string faults_of(const Runs& runs) {
  std::string html;
  for (const RunRecord& run : runs) {
    std::vector<std::string> texts;
    if (run.status.is_object() && run.status.contains("message")) {
      texts.push_back(text_in(run.status, "message"));
    }
    if (run.status.is_object() && run.status.contains("faults")) {
      for (const auto& fault : run.status["faults"]) {
        texts.push_back(fault.is_string() ? fault.get<std::string>() : fault.dump());
      }
    }
    for (const std::string& text : texts) {
      html += concat("<p class=\"fault\">", escaped(concat(run.name, ": ", text)), "</p>\n");
    }
  }
  return html;
}

/// One key of the records over another.
LineChart::Series series_of(const std::string& name, const Records& records, const std::string& x,
                            const std::string& y, double factor) {
  LineChart::Series series{.name = name, .points = {}};
  for (const auto& record : records) {
    series.points.emplace_back(number_in(record, x), factor * number_in(record, y));
  }
  return series;
}

struct ChartRow {
  const char* title;
  const char* x_label;
  /// True: step records; false: evaluations.
  bool of_steps;
  const char* x;
  const char* y;
  /// Drawn dashed beside y; null: none.
  const char* other;
  const char* other_name;
  bool logarithmic;
  /// What is drawn is so many times y.
  double factor = 1.0;
};

constexpr ChartRow kCharts[] = {
    {"Training loss over steps", "steps", true, "step", "loss", nullptr, "", false},
    {"Training loss over time", "seconds", true, "elapsed_s", "loss", nullptr, "", false},
    {"Validation loss of the mean model", "steps", false, "step", "loss_mean_model", "loss_ema",
     "moving average", false},
    {"Validation loss over time", "seconds", false, "elapsed_s", "loss_mean_model", nullptr, "",
     false},
    {"Accuracy of the mean model, %", "steps", false, "step", "accuracy_mean_model",
     "accuracy_worst_local", "worst local model", false, 100.0},
    {"Consensus distance", "steps", true, "step", "consensus_distance", nullptr, "", true},
    {"Learning rate", "steps", true, "step", "lr", nullptr, "", false},
    {"Samples per second", "steps", true, "step", "samples_per_s", nullptr, "", false},
};

std::string charts_of(const Runs& runs) {
  std::string html;
  for (const ChartRow& row : kCharts) {
    LineChart chart{
        .title = row.title, .x_label = row.x_label, .series = {}, .logarithmic = row.logarithmic};
    for (std::size_t k = 0; k < runs.size(); ++k) {
      const Records& records = row.of_steps ? runs[k].steps : runs[k].evaluations;
      chart.series.push_back(series_of(runs[k].name, records, row.x, row.y, row.factor));
      chart.series.back().color = k;
      std::ranges::copy(marks_of(runs[k], row.x, k), std::back_inserter(chart.marks));
      if (row.other == nullptr) continue;
      chart.series.push_back(series_of(concat(runs[k].name, ", ", row.other_name), records, row.x,
                                       row.other, row.factor));
      chart.series.back().color = k;
      chart.series.back().dashed = true;
    }
    html += line_chart(chart);
  }
  return part_under("Curves", in_block("charts", html));
}

/// One list of the records of steps, over the steps. A member keeps its curve when its rank
/// changes.
std::vector<LineChart::Series> series_of_ranks(const RunRecord& run, const char* key) {
  std::map<std::size_t, LineChart::Series> series;
  for (const auto& record : run.steps) {
    for (std::size_t rank = 0; rank < size_in(record, key); ++rank) {
      const std::size_t member = member_at(record, rank);
      LineChart::Series& one = series[member];
      one.color = member;
      one.points.emplace_back(number_in(record, "step"), number_in(record, key, rank));
    }
  }
  std::vector<LineChart::Series> all;
  for (auto& [member, one] : series) {
    one.name = concat(run.changes.empty() ? "rank " : "member ", member);
    all.push_back(std::move(one));
  }
  return all;
}

/// The losses of every rank, where there are several and not too many to see.
std::string rank_charts(const RunRecord& run) {
  constexpr std::size_t kMostRanks = 16;
  std::string html;
  for (const auto& [title, key] :
       {std::pair("Training loss of every rank", "rank_loss"),
        std::pair("Waiting for peers, milliseconds per step", "rank_wait_ms")}) {
    LineChart chart{.title = concat(title, ": ", run.name),
                    .x_label = "steps",
                    .series = series_of_ranks(run, key),
                    .marks = marks_of(run, "step", 0)};
    if (chart.series.size() < 2 || chart.series.size() > kMostRanks) return "";
    html += line_chart(chart);
  }
  return html;
}

std::string time_of_ranks(const RunRecord& run) {
  constexpr std::size_t kMostBars = 64;
  const auto& end = run.final_record;
  StackedBars chart{.title = concat("Time of a step on every rank: ", run.name),
                    .parts = {{"forward", color_of_kind("forward")},
                              {"backward", color_of_kind("backward")},
                              {"waiting for peers (lost time)", color_of_kind("wait")},
                              {"mix and update", color_of_kind("update")},
                              {"batches and the rest", color_of_kind("batch")}},
                    .bars = {},
                    .unit = "ms"};
  for (std::size_t rank = 0; rank < std::min(size_in(end, "rank_step_ms"), kMostBars); ++rank) {
    std::vector<double> values;
    double rest = number_in(end, "rank_step_ms", rank);
    for (const char* const key :
         {"rank_forward_ms", "rank_backward_ms", "rank_wait_ms", "rank_update_ms"}) {
      values.push_back(number_in(end, key, rank));
      rest -= values.back();
    }
    values.push_back(rest);
    chart.bars.push_back({.name = run.changes.empty() ? concat("rank ", rank)
                                                      : concat("member ", member_at(end, rank)),
                          .values = std::move(values)});
  }
  return stacked_bars(chart);
}

std::string timeline_of(const RunRecord& run) {
  for (const std::string& path : run.timeline_paths) {
    const nlohmann::json trace = read_trace(path);
    // Another run may have written a file of this name.
    const nlohmann::json other =
        trace.is_object() ? trace.value("otherData", nlohmann::json()) : nlohmann::json();
    const bool is_of_run =
        other.is_object() && other.value("about", nlohmann::json()) == run.value("run.output_dir");
    if (is_of_run) return timeline_figure(trace, concat("Timeline of a few steps: ", run.name));
  }
  return "";
}

std::string in_base64(const std::string& bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8U | (k < count ? static_cast<std::uint8_t>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      text += k <= count ? kDigits[group >> (18U - 6U * k) & 63U] : '=';
    }
  }
  return text;
}

/// The file in which a run's topology stands; empty if there is none.
std::string topology_file_of(const RunRecord& run) {
  for (const auto& [key, value] : run.config) {
    if (key.starts_with("topology.") && key.ends_with("path")) return value;
  }
  return "";
}

/// A drawing of the rounds; a sentence if there is none.
std::string topology_of(const RunRecord& run, const PlugIns& own) {
  constexpr double kMostDrawn = 512.0;
  const double size = num_first_ranks_of(run);
  if (!(size >= 2.0 && size <= kMostDrawn) || run.value("topology.name").empty()) return "";
  const double node_size = std::min(number_in(run.environment, "node_size"), size);
  const World world{.size = static_cast<int>(size),
                    .node_size = static_cast<int>(node_size >= 1.0 ? node_size : size)};
  std::string html = concat("<h3>", escaped(run.name), "</h3>");
  // What a run's configuration names may be any file of this machine: the page must not tell what
  // is in it, and a device may have no end.
  const std::string path = topology_file_of(run);
  std::error_code failure;
  try {
    if (!path.empty() && !std::filesystem::is_regular_file(path, failure)) {
      throw ConfigError("it is no regular file");
    }
    const Options config(read_yaml_file(run.path + "/config.yaml"));
    const auto topology = read_topology(config.section("topology"), world, "ring", own.topologies);
    html += concat("<p><img alt=\"rounds of the topology\" src=\"data:image/svg+xml;base64,",
                   in_base64(topology_picture(*topology, world.size)), "\"></p>\n");
  } catch (const std::exception& error) {
    const std::string why =
        path.empty() ? error.what() : concat(path, " does not hold a topology that can be drawn");
    html += concat("<p>There is no drawing: ", escaped(why), "</p>\n");
  }
  return html;
}

/// All values, one column for each run; with several runs those that differ come first.
std::string configuration_of(const Runs& runs) {
  std::set<std::string> keys;
  for (const RunRecord& run : runs) {
    for (const auto& [key, value] : run.config) keys.insert(key);
  }
  const auto rows = [&](bool differing) {
    std::string html = "<table><tr><th>key</th>";
    for (const RunRecord& run : runs) html += concat("<th>", escaped(run.name), "</th>");
    html += "</tr>\n";
    for (const std::string& key : keys) {
      const bool differs = std::ranges::any_of(
          runs, [&](const RunRecord& run) { return run.value(key) != runs[0].value(key); });
      if (differing && !differs) continue;
      html += "<tr>" + cell(key);
      for (const RunRecord& run : runs) html += cell(run.value(key));
      html += "</tr>\n";
    }
    return html + "</table>\n";
  };
  return concat(runs.size() > 1 ? "<h2>Differences of the configurations</h2>\n" : "",
                runs.size() > 1 ? rows(true) : "",
                "<h2>Configuration</h2>\n<details><summary>all values</summary>\n", rows(false),
                "</details>\n");
}

std::string environment_of(const RunRecord& run) {
  if (!run.environment.is_object()) return "";
  std::string html = concat("<h3>", escaped(run.name), "</h3><table>\n<tr>", cell("started"),
                            cell(text_in(run.environment, "started")), "</tr>\n");
  if (run.environment.contains("versions")) {
    for (const auto& [name, version] : run.environment["versions"].items()) {
      if (version.is_string()) {
        html += concat("<tr>", cell(name), cell(version.get<std::string>()), "</tr>\n");
      }
    }
  }
  if (run.environment.contains("hosts")) {
    for (const auto& host : run.environment["hosts"]) {
      html +=
          concat("<tr>", cell("host " + text_in(host, "name")),
                 cell(concat(text_in(host, "processor"), ", ", text_in(host, "cores"), " cores, ",
                             text_in(host, "memory_gb"), " GB, ranks ", text_in(host, "ranks"))),
                 "</tr>\n");
    }
  }
  return html + "</table>\n";
}

template <class Part>
std::string for_each(const Runs& runs, const Part& part) {
  std::string html;
  for (const RunRecord& run : runs) html += part(run);
  return html;
}

}  // namespace

std::string html_report(const Runs& runs, const PlugIns& own) {
  std::vector<std::string> names;
  for (const RunRecord& run : runs) names.push_back(run.name);
  const std::string title = escaped(join(names, ", "));
  const std::string ranks = concat(for_each(runs, time_of_ranks), for_each(runs, rank_charts));
  const std::string topologies =
      for_each(runs, [&own](const RunRecord& run) { return topology_of(run, own); });
  return concat("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>", title,
                "</title>\n<style>", kStyle, "</style></head><body>\n<h1>", title, "</h1>\n",
                summary_table(runs), faults_of(runs), charts_of(runs),
                part_under("Members", for_each(runs, members_table)),
                part_under("Ranks", in_block("charts", ranks)), for_each(runs, timeline_of),
                part_under("Topology", in_block("topology", topologies)), configuration_of(runs),
                part_under("Versions and machines", for_each(runs, environment_of)),
                "</body></html>\n");
}

void write_report(const std::string& folder, const PlugIns& own) {
  write_whole_file(concat(folder, "/", kReportName), html_report({read_run(folder)}, own),
                   /*sync=*/false);
}

std::string csv_report(const Runs& runs) {
  std::vector<std::string> columns;
  const auto for_each_record = [&](const auto& visit) {
    for (const RunRecord& run : runs) {
      for (const Records* records : {&run.steps, &run.evaluations}) {
        for (const auto& record : *records) visit(run, record);
      }
      if (!run.final_record.is_null()) visit(run, run.final_record);
    }
  };
  for_each_record([&](const RunRecord&, const nlohmann::ordered_json& record) {
    for (const auto& [key, value] : record.items()) {
      const bool known = std::ranges::find(columns, key) != columns.end();
      if ((value.is_number() || value.is_null()) && !known) columns.push_back(key);
    }
  });
  std::string csv = concat("run,kind,", join(columns, ","), "\n");
  for_each_record([&](const RunRecord& run, const nlohmann::ordered_json& record) {
    // Quotes as RFC 4180 has them.
    std::string name = run.name;
    for (std::size_t i = name.find('"'); i != name.npos; i = name.find('"', i + 2)) {
      name.insert(i, 1, '"');
    }
    csv += concat("\"", name, "\",", text_in(record, "kind"));
    for (const std::string& key : columns) {
      csv += ",";
      if (record.contains(key) && record[key].is_number()) csv += record[key].dump();
    }
    csv += "\n";
  });
  return csv;
}

}  // namespace gossamer::apps

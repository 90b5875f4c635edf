#include "apps/lab/study/study_table.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>

#include "apps/records/run_record.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

constexpr std::string_view kPlusMinus = " \u00b1 ";

/// `factor` times mean and deviation, with two digits.
std::string text_of(const Moments& moments, double factor, std::chars_format format) {
  const std::string mean = with_digits(factor * moments.mean, 2, format);
  if (std::isnan(moments.deviation)) return mean;
  return concat(mean, kPlusMinus, with_digits(factor * moments.deviation, 2, format));
}

std::string percent(const Moments& moments) {
  return text_of(moments, 100.0, std::chars_format::fixed);
}

std::string distance(const Moments& moments) {
  return text_of(moments, 1.0, std::chars_format::scientific);
}

/// The cells of the table, header first.
std::vector<std::vector<std::string>> cells_of(const std::vector<StudyGroup>& groups) {
  std::vector<std::vector<std::string>> lines = {{"labels", "topology", "optimizer", "seeds",
                                                  "mean model, %", "worst local, %",
                                                  "consensus distance", "sent per step"}};
  for (const StudyGroup& group : groups) {
    lines.push_back({heterogeneity_label(group.dirichlet_alpha), group.topology, group.optimizer,
                     std::to_string(group.num_seeds), percent(group.accuracy_mean_model),
                     percent(group.accuracy_worst_local), distance(group.consensus_distance),
                     human_bytes(group.bytes_per_step.mean)});
  }
  return lines;
}

/// The width of a text in columns. Its only letter beyond ASCII is one column wide.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

Json to_json(const Moments& moments) {
  // NaN becomes null.
  return {{"mean", moments.mean}, {"deviation", moments.deviation}};
}

std::int64_t integer_in(const Json& record, const char* key) {
  const bool has = record.is_object() && record.contains(key) && record[key].is_number_integer();
  return has ? record[key].get<std::int64_t>() : 0;
}

/// A value of a row as a cell of CSV.
std::string cell_of(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_float() ? shortest(value.get<double>()) : value.dump();
}

Json alpha_json(const std::optional<double>& alpha) { return alpha ? Json(*alpha) : Json(); }

}  // namespace

StudyRow make_row(const StudyRun& run, const Json& final_record) {
  return {.name = run.name,
          .topology = run.topology,
          .optimizer = run.optimizer,
          .dirichlet_alpha = run.dirichlet_alpha,
          .seed = run.seed,
          .workers = static_cast<int>(integer_in(final_record, "world_size")),
          .steps = integer_in(final_record, "step"),
          .accuracy_mean_model = number_in(final_record, "accuracy_mean_model"),
          .accuracy_worst_local = number_in(final_record, "accuracy_worst_local"),
          .loss_mean_model = number_in(final_record, "loss_mean_model"),
          .consensus_distance = number_in(final_record, "consensus_distance"),
          .bytes_per_step = number_in(final_record, "bytes_sent_per_step"),
          .train_s = number_in(final_record, "train_s")};
}

Moments moments_of(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  Moments moments;
  for (const double value : values) moments.mean += value / count;
  if (values.size() < 2) return moments;
  double squares = 0.0;
  for (const double value : values) {
    squares += (value - moments.mean) * (value - moments.mean);
  }
  moments.deviation = std::sqrt(squares / (count - 1.0));
  return moments;
}

std::vector<StudyGroup> group_over_seeds(const std::vector<StudyRow>& rows) {
  const auto alike = [](const StudyRow& a, const StudyRow& b) {
    return a.topology == b.topology && a.optimizer == b.optimizer &&
           a.dirichlet_alpha == b.dirichlet_alpha;
  };
  std::vector<std::vector<const StudyRow*>> parts;
  for (const StudyRow& row : rows) {
    const auto part =
        std::ranges::find_if(parts, [&](const auto& rest) { return alike(*rest.front(), row); });
    if (part == parts.end()) {
      parts.push_back({&row});
    } else {
      part->push_back(&row);
    }
  }
  std::vector<StudyGroup> groups;
  for (const auto& part : parts) {
    const auto moments = [&part](double StudyRow::*member) {
      std::vector<double> values;
      for (const StudyRow* row : part) values.push_back(row->*member);
      return moments_of(values);
    };
    const StudyRow& first = *part.front();
    groups.push_back({.topology = first.topology,
                      .optimizer = first.optimizer,
                      .dirichlet_alpha = first.dirichlet_alpha,
                      .num_seeds = static_cast<std::int64_t>(part.size()),
                      .accuracy_mean_model = moments(&StudyRow::accuracy_mean_model),
                      .accuracy_worst_local = moments(&StudyRow::accuracy_worst_local),
                      .consensus_distance = moments(&StudyRow::consensus_distance),
                      .bytes_per_step = moments(&StudyRow::bytes_per_step)});
  }
  return groups;
}

std::string to_csv(const std::vector<StudyRow>& rows) {
  std::vector<std::string> keys;
  const Json one = to_json(std::vector<StudyRow>(1));
  for (const auto& [key, value] : one[0].items()) keys.push_back(key);
  std::string text = join(keys, ",") + "\n";
  for (const Json& row : to_json(rows)) {
    std::vector<std::string> cells;
    for (const auto& [key, value] : row.items()) cells.push_back(cell_of(value));
    text += join(cells, ",") + "\n";
  }
  return text;
}

std::string to_text(const std::vector<StudyGroup>& groups) {
  const auto lines = cells_of(groups);
  std::vector<std::size_t> widths(lines[0].size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      widths[i] = std::max(widths[i], width_of(line[i]));
    }
  }
  std::string text;
  for (const auto& line : lines) {
    std::string row;
    for (std::size_t i = 0; i < line.size(); ++i) {
      row += concat("  ", line[i], std::string(widths[i] - width_of(line[i]), ' '));
    }
    row.resize(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

std::string to_markdown(const std::vector<StudyGroup>& groups) {
  std::string text;
  for (const auto& line : cells_of(groups)) {
    const bool header = text.empty();
    text += concat("| ", join(line, " | "), " |\n");
    if (!header) continue;
    text += "|";
    for (std::size_t i = 0; i < line.size(); ++i) text += "---|";
    text += "\n";
  }
  return text;
}

Json to_json(const std::vector<StudyRow>& rows) {
  Json json = Json::array();
  for (const StudyRow& row : rows) {
    json.push_back({{"run", row.name},
                    {"topology", row.topology},
                    {"optimizer", row.optimizer},
                    {"dirichlet_alpha", alpha_json(row.dirichlet_alpha)},
                    {"seed", row.seed},
                    {"workers", row.workers},
                    {"steps", row.steps},
                    {"accuracy_mean_model", row.accuracy_mean_model},
                    {"accuracy_worst_local", row.accuracy_worst_local},
                    {"loss_mean_model", row.loss_mean_model},
                    {"consensus_distance", row.consensus_distance},
                    {"bytes_sent_per_step", row.bytes_per_step},
                    {"train_s", row.train_s}});
  }
  return json;
}

Json to_json(const std::vector<StudyGroup>& groups) {
  Json json = Json::array();
  for (const StudyGroup& group : groups) {
    json.push_back({{"topology", group.topology},
                    {"optimizer", group.optimizer},
                    {"dirichlet_alpha", alpha_json(group.dirichlet_alpha)},
                    {"num_seeds", group.num_seeds},
                    {"accuracy_mean_model", to_json(group.accuracy_mean_model)},
                    {"accuracy_worst_local", to_json(group.accuracy_worst_local)},
                    {"consensus_distance", to_json(group.consensus_distance)},
                    {"bytes_sent_per_step", to_json(group.bytes_per_step)}});
  }
  return json;
}

}  // namespace gossamer::apps

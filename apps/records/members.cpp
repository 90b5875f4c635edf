#include "apps/records/members.hpp"

#include <cmath>

#include "base/markup.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

/// `after step 120: lost 2`.
std::string text_of_change(const nlohmann::ordered_json& change) {
  std::string text = concat("after step ", text_in(change, "step"), ": ");
  if (size_in(change, "lost") + size_in(change, "joined") == 0) return text + "resumed";
  std::vector<std::string> parts;
  for (const char* const key : {"lost", "joined"}) {
    if (size_in(change, key) > 0) parts.push_back(concat(key, " ", members_in(change, key)));
  }
  return text + join(parts, ", ");
}

}  // namespace

double num_first_ranks_of(const RunRecord& run) {
  const double size = number_in(run.environment, "world_size");
  if (std::isfinite(size)) return size;
  // The runs of a study have no environment.json.
  const auto& record = run.steps.empty() ? run.final_record : run.steps.front();
  const std::size_t count =
      size_in(record, run.steps.empty() ? "parameter_checksums" : "rank_loss");
  return count > 0 ? static_cast<double>(count) : number_in(run.final_record, "world_size");
}

std::string num_ranks_of(const RunRecord& run) {
  const double size = num_first_ranks_of(run);
  const std::string first = std::isfinite(size) ? shortest(size) : "";
  const std::string now = concat(size_in(run.status, "members"));
  return now == "0" || now == first ? first : concat(first, ", now ", now);
}

std::vector<LineChart::Mark> marks_of(const RunRecord& run, const std::string& x,
                                      std::size_t color) {
  std::vector<LineChart::Mark> marks;
  for (const auto& change : run.changes) {
    marks.push_back({.x = number_in(change, x), .text = text_of_change(change), .color = color});
  }
  return marks;
}

std::string members_table(const RunRecord& run) {
  if (run.changes.empty()) return "";
  std::string html = concat("<h3>", escaped(run.name), "</h3><table>\n<tr>");
  for (const char* const heading :
       {"after step", "epoch", "ranks now", "members", "lost", "joined", "recovery, s"}) {
    html += concat("<th>", heading, "</th>");
  }
  html += "</tr>\n";
  for (const auto& change : run.changes) {
    html += "<tr>";
    for (const std::string& text :
         {text_in(change, "step"), text_in(change, "epoch"), concat(size_in(change, "members")),
          members_in(change, "members"), members_in(change, "lost"), members_in(change, "joined"),
          short_number(number_in(change, "recovery_s"))}) {
      html += concat("<td class=\"number\">", escaped(text), "</td>");
    }
    html += "</tr>\n";
  }
  return concat(html, "</table>\n<p>Goodput at the end: ",
                short_number(100.0 * number_in(run.status, "goodput")), " %</p>\n");
}

}  // namespace gossamer::apps

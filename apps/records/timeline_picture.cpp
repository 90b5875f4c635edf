#include "apps/records/timeline_picture.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "apps/records/chart.hpp"
#include "apps/records/json.hpp"
#include "base/markup.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

using TraceFile = nlohmann::json;

constexpr double kPictureWidth = 1120.0;
constexpr double kNames = 96.0;
constexpr double kMargin = 12.0;
constexpr double kHead = 46.0;
constexpr double kFoot = 26.0;
constexpr double kRow = 18.0;
/// Messages in flight at once lie side by side in thinner rows.
constexpr double kThinRow = 10.0;
constexpr double kRowGap = 3.0;
constexpr double kRankGap = 9.0;
/// Narrower spans cannot be seen.
constexpr double kLeastWidth = 0.2;
/// About the width of a letter in a thin row.
constexpr double kLetter = 4.6;
/// Times in a trace have three digits after the microsecond.
constexpr double kDigit = 1e-3;
constexpr std::size_t kMostRanks = 16;
constexpr std::size_t kStepsShown = 3;
/// Thin rows of a rank; further messages in flight at once lie in the last one.
constexpr std::size_t kMostThinRows = 6;

/// What a span shows: its name in the legend and its colour. Colours are those of the bars in the
/// report, where the kinds are the same. A later row is drawn over an earlier one.
struct KindRow {
  std::string_view kind;
  std::string_view name;
  std::string_view color;
};

constexpr std::array kKinds = {
    // Below the steps that a rank makes in it.
    KindRow{"members", "change of the members", "#5599aa"},
    KindRow{"evaluation", "evaluation", "#778899"},
    KindRow{"checkpoint", "checkpoint", "#8899bb"},
    KindRow{"consensus", "consensus distance", "#99bb99"},
    KindRow{"records", "records", "#bb9988"},
    KindRow{"switch", "change of the algorithm", "#9977bb"},
    KindRow{"batch", "batch", "#ccbb44"},
    KindRow{"forward", "forward", "#4477aa"},
    KindRow{"backward", "backward", "#ee6677"},
    KindRow{"graph", "forward and backward", "#ee6677"},
    KindRow{"update", "mix and update", "#aa3377"},
    // Over the update, which may wait for the rest of a large block.
    KindRow{"wait", "waiting for peers (lost time)", "#c8c8c8"},
    KindRow{"encode", "encode", "#bb5500"},
    KindRow{"decode", "decode", "#ee9955"},
    KindRow{"sleep", "sleep (bench step --slow-rank)", "#eeeeee"},
    KindRow{"exchange", "exchange", "#66ccee"},
    KindRow{"all-reduce", "all-reduce", "#66ccee"},
    KindRow{"reduce-scatter", "reduce-scatter", "#66ccee"},
    KindRow{"all-gather", "all-gather", "#99ddff"},
};
constexpr KindRow kOther = {"", "other", "#777777"};

std::size_t place_of(std::string_view kind) {
  const auto found = std::ranges::find(kKinds, kind, &KindRow::kind);
  return static_cast<std::size_t>(found - kKinds.begin());
}

const KindRow& row_of(std::size_t place) { return place < kKinds.size() ? kKinds[place] : kOther; }

struct Bar {
  std::size_t kind = 0;
  double begin_us = 0.0;
  double end_us = 0.0;
  bool on_wire = false;
  /// What the page shows when the mouse is over it.
  std::string title = {};
  /// What stands in it where there is room.
  std::string text = {};
};

struct RankBars {
  std::vector<Bar> bars;
  /// Number of the step -> its bounds in microseconds.
  std::map<std::int64_t, std::pair<double, double>> steps;
};

/// 0 for what is no whole number of 64 bits.
std::int64_t integer_in(const TraceFile& object, const char* key) {
  const TraceFile value = object.value(key, TraceFile());
  return value.is_number_integer() ? value.get<std::int64_t>() : 0;
}

std::string title_of(const TraceFile& event) {
  const TraceFile about = event.value("args", TraceFile::object());
  std::string title = event.value("name", "");
  for (const char* const key : {"bucket", "round"}) {
    if (about.contains(key)) title += concat(", ", key, " ", about[key].dump());
  }
  if (about.contains("peers")) title += concat(", with ", about["peers"].dump());
  const double bytes = about.value("bytes", 0.0);
  if (bytes > 0.0) title += concat(", ", human_bytes(bytes));
  return concat(title, ": ", short_number(event.value("dur", 0.0) / 1e3), " ms");
}

/// `bucket 2, with 1, 3`; empty for what is no message.
std::string text_of(const TraceFile& event) {
  const TraceFile about = event.value("args", TraceFile::object());
  if (!about.contains("peers") || !about.contains("bucket")) return "";
  const std::size_t count = about.value("num_peers", about["peers"].size());
  const std::string peers = count > 3 ? concat(count, " others") : join(about["peers"], ", ");
  return concat("bucket ", about["bucket"].dump(), ", with ", peers);
}

std::map<int, RankBars> read_bars(const TraceFile& trace) {
  std::map<int, RankBars> ranks;
  for (const TraceFile& event : trace["traceEvents"]) {
    if (event.value("ph", "") != "X") continue;
    RankBars& rank = ranks[static_cast<int>(integer_in(event, "pid"))];
    const std::string kind = event.value("cat", "");
    const double begin = event.value("ts", 0.0);
    const double end = begin + event.value("dur", 0.0);
    // With many buckets many messages queue up at once.
    if (kind == "queued") continue;
    if (kind == "step") {
      const TraceFile about = event.value("args", TraceFile::object());
      rank.steps[integer_in(about, "step")] = {begin, end};
      continue;
    }
    rank.bars.push_back({.kind = place_of(kind),
                         .begin_us = begin,
                         .end_us = end,
                         .on_wire = integer_in(event, "tid") != 0,
                         .title = title_of(event),
                         .text = text_of(event)});
  }
  return ranks;
}

/// Draws the steps `first` to `last` of all ranks.
class Picture {
 public:
  Picture(const std::map<int, RankBars>& ranks, std::int64_t first, std::int64_t last)
      : ranks_(ranks), first_(first), last_(last) {
    for (const auto& [rank, bars] : ranks) {
      for (const auto& [step, bounds] : bars.steps) {
        if (step < first || step > last) continue;
        begin_us_ = std::min(begin_us_, bounds.first);
        end_us_ = std::max(end_us_, bounds.second);
      }
    }
  }

  /// False: the steps take no time that a trace can hold, so there is nothing to draw.
  [[nodiscard]] bool has_length() const {
    return std::isfinite(end_us_ - begin_us_) && end_us_ - begin_us_ >= kDigit;
  }
  /// The parts below the title; `height` is then known.
  std::string draw() {
    std::string svg;
    double y = kHead;
    std::size_t count = 0;
    for (const auto& [rank, bars] : ranks_) {
      if (count++ == kMostRanks) break;
      svg += draw_rank(rank, bars, y);
    }
    if (count > kMostRanks) {
      svg += text_at(kNames, y + 12.0, "start",
                     concat("and ", ranks_.size() - kMostRanks, " more ranks"));
      y += kRow;
    }
    height_ = y + kFoot;
    return axis(y) + svg;
  }
  [[nodiscard]] double height() const { return height_; }
  /// The kinds that are in the picture.
  [[nodiscard]] const std::set<std::size_t>& kinds() const { return kinds_; }

 private:
  [[nodiscard]] double x_at(double us) const {
    const double part = std::clamp((us - begin_us_) / (end_us_ - begin_us_), 0.0, 1.0);
    return kNames + part * (kPictureWidth - kNames - kMargin);
  }

  std::string draw_bar(const Bar& bar, double y, double height) {
    const double x = x_at(bar.begin_us);
    const double width = x_at(bar.end_us) - x;
    if (width < kLeastWidth) return "";
    kinds_.insert(bar.kind);
    std::string svg = concat(
        "<rect x=\"", coordinate(x), "\" y=\"", coordinate(y), "\" width=\"", coordinate(width),
        "\" height=\"", coordinate(height), "\" fill=\"", row_of(bar.kind).color,
        "\" stroke=\"#fff\" stroke-width=\".4\"><title>", escaped(bar.title), "</title></rect>\n");
    if (width > kLetter * static_cast<double>(bar.text.size()) && !bar.text.empty()) {
      svg += concat("<text x=\"", coordinate(x + 3.0), "\" y=\"", coordinate(y + height - 2.0),
                    "\" style=\"font-size:8px\">", escaped(bar.text), "</text>\n");
    }
    return svg;
  }

  /// Draws a rank at `y`, and moves `y` below it.
  std::string draw_rank(int rank, const RankBars& bars, double& y) {
    std::vector<Bar> computing;
    std::vector<Bar> wire;
    for (const Bar& bar : bars.bars) {
      if (bar.end_us > begin_us_ && bar.begin_us < end_us_) {
        (bar.on_wire ? wire : computing).push_back(bar);
      }
    }
    std::string svg = text_at(kNames - 8.0, y + kRow - 5.0, "end", concat("rank ", rank));
    std::ranges::stable_sort(computing, {}, &Bar::kind);
    for (const Bar& bar : computing) svg += draw_bar(bar, y, kRow);
    for (const auto& [step, bounds] : bars.steps) {
      if (step < first_ || step > last_) continue;
      const std::string x = coordinate(x_at(bounds.first));
      svg += concat("<line class=\"axis\" x1=\"", x, "\" x2=\"", x, "\" y1=\"", coordinate(y - 3.0),
                    "\" y2=\"", coordinate(y + kRow), "\"/>\n");
    }
    y += kRow + kRowGap;
    svg += text_at(kNames - 8.0, y + kThinRow, "end", "wire");
    svg += draw_wire(wire, y);
    y += kRankGap;
    return svg;
  }

  std::string draw_wire(std::vector<Bar> bars, double& y) {
    std::ranges::sort(bars, {}, &Bar::begin_us);
    std::string svg;
    std::vector<double> ends;
    for (const Bar& bar : bars) {
      const auto free =
          std::ranges::find_if(ends, [&bar](double end) { return end <= bar.begin_us + kDigit; });
      const auto row = std::min(static_cast<std::size_t>(free - ends.begin()), kMostThinRows - 1);
      if (row == ends.size()) ends.push_back(0.0);
      ends[row] = bar.end_us;
      svg += draw_bar(bar, y + static_cast<double>(row) * (kThinRow + 1.0), kThinRow);
    }
    y += (kThinRow + 1.0) * static_cast<double>(std::max<std::size_t>(1, ends.size()));
    return svg;
  }

  /// The numbers of the steps above, milliseconds below.
  [[nodiscard]] std::string axis(double bottom) const {
    std::string svg;
    const auto& steps = ranks_.begin()->second.steps;
    for (auto at = steps.lower_bound(first_); at != steps.end() && at->first <= last_; ++at) {
      svg += text_at(x_at(at->second.first), kHead - 8.0, "start", concat("step ", at->first));
    }
    const double length = (end_us_ - begin_us_) / 1e3;
    double tick = std::pow(10.0, std::floor(std::log10(length / 4.0)));
    if (length / tick > 25.0) tick *= 5.0;
    if (length / tick > 12.0) tick *= 2.0;
    for (double ms = 0.0; ms <= length; ms += tick) {
      const std::string x = coordinate(x_at(begin_us_ + 1e3 * ms));
      svg += concat("<line class=\"grid\" x1=\"", x, "\" x2=\"", x, "\" y1=\"",
                    coordinate(kHead - 4.0), "\" y2=\"", coordinate(bottom), "\"/>\n");
      svg += text_at(x_at(begin_us_ + 1e3 * ms), bottom + 14.0, "middle",
                     concat(short_number(ms), ms + tick > length ? " ms" : ""));
    }
    return svg;
  }

  const std::map<int, RankBars>& ranks_;
  std::int64_t first_;
  std::int64_t last_;
  double begin_us_ = std::numeric_limits<double>::infinity();
  double end_us_ = -std::numeric_limits<double>::infinity();
  double height_ = 0.0;
  std::set<std::size_t> kinds_;
};

/// The steps to show: not the first one, whose messages of the step before are missing.
std::vector<std::int64_t> steps_to_show(const std::map<int, RankBars>& ranks) {
  std::vector<std::int64_t> steps;
  if (ranks.empty()) return steps;
  for (const auto& [step, bounds] : ranks.begin()->second.steps) steps.push_back(step);
  if (steps.size() > 1) steps.erase(steps.begin());
  steps.resize(std::min(steps.size(), kStepsShown));
  return steps;
}

struct Drawing {
  std::string svg;
  double height = 0.0;
  std::set<std::size_t> kinds = {};
};

/// The drawing of a trace; empty if there is nothing to draw.
Drawing draw(const TraceFile& trace) {
  try {
    if (!trace.is_object() || !trace.contains("traceEvents")) return {};
    const auto ranks = read_bars(trace);
    const auto steps = steps_to_show(ranks);
    if (steps.empty()) return {};
    Picture picture(ranks, steps.front(), steps.back());
    if (!picture.has_length()) return {};
    std::string svg = picture.draw();
    return {std::move(svg), picture.height(), picture.kinds()};
  } catch (const TraceFile::exception&) {
    // A trace of another program.
    return {};
  }
}

std::string title_text(const std::string& title) {
  return concat("<text class=\"title\" x=\"8\" y=\"18\">", escaped(title), "</text>\n");
}

constexpr std::string_view kOwnStyle =
    "<style>text { font: 11px system-ui, sans-serif; fill: #444; } "
    "text.title { font-size: 13px; font-weight: 600; fill: #222; } "
    ".grid { stroke: #e4e4e4; } .axis { stroke: #222; }</style>\n";

}  // namespace

std::string color_of_kind(std::string_view kind) {
  return std::string(row_of(place_of(kind)).color);
}

nlohmann::json read_trace(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return nullptr;
  auto trace = json_file_or_null<TraceFile>(path);
  const bool is_trace =
      trace.is_object() && trace.contains("traceEvents") && trace["traceEvents"].is_array();
  return is_trace ? trace : TraceFile(nullptr);
}

std::string timeline_figure(const TraceFile& trace, const std::string& title) {
  const Drawing drawing = draw(trace);
  if (drawing.svg.empty()) return "";
  std::string legend;
  for (const std::size_t kind : drawing.kinds) {
    legend += concat("<span><i style=\"background:", row_of(kind).color, "\"></i>",
                     row_of(kind).name, "</span> ");
  }
  return concat("<figure><svg viewBox=\"0 0 ", kPictureWidth, " ", coordinate(drawing.height),
                "\" role=\"img\" aria-label=\"", escaped(title), "\">\n", title_text(title),
                drawing.svg, "</svg><figcaption>", legend, "</figcaption></figure>\n");
}

std::string timeline_svg(const TraceFile& trace, const std::string& title) {
  const Drawing drawing = draw(trace);
  if (drawing.svg.empty()) return "";
  std::string legend;
  double x = kNames;
  for (const std::size_t kind : drawing.kinds) {
    legend +=
        concat("<rect x=\"", coordinate(x), "\" y=\"", coordinate(drawing.height),
               "\" width=\"10\" height=\"10\" fill=\"", row_of(kind).color, "\"/>\n",
               text_at(x + 15.0, drawing.height + 9.0, "start", std::string(row_of(kind).name)));
    x += 40.0 + 6.0 * static_cast<double>(row_of(kind).name.size());
  }
  return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", kPictureWidth, " ",
                coordinate(drawing.height + 22.0), "\" width=\"", kPictureWidth, "\">\n", kOwnStyle,
                "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n", title_text(title),
                drawing.svg, legend, "</svg>\n");
}

}  // namespace gossamer::apps

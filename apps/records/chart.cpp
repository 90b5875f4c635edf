#include "apps/records/chart.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/markup.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

constexpr double kWidth = 560.0;
constexpr double kHeight = 282.0;
constexpr double kLeft = 62.0;
constexpr double kRight = 16.0;
constexpr double kTop = 12.0;
constexpr double kBottom = 40.0;
constexpr double kBarHeight = 18.0;
constexpr double kBarGap = 6.0;
constexpr int kNumTicks = 5;

std::string line_from(double x1, double y1, double x2, double y2, std::string_view kind) {
  return concat("<line class=\"", kind, "\" x1=\"", coordinate(x1), "\" y1=\"", coordinate(y1),
                "\" x2=\"", coordinate(x2), "\" y2=\"", coordinate(y2), "\"/>\n");
}

/// An axis: the values at its ends, and the ticks between them.
struct Axis {
  double first = 0.0;
  double last = 1.0;
  bool logarithmic = false;
  std::vector<double> ticks = {};
  /// Between two ticks; 0: they differ in their powers of ten.
  double distance = 0.0;

  /// The label of a tick, with as many digits as tell it from its neighbours.
  [[nodiscard]] std::string label(double tick) const {
    const double largest = std::max(std::abs(first), std::abs(last));
    // Beyond that, all digits of a label would not fit beside the axis.
    if (distance <= 0.0 || largest >= 1e6 || distance < 1e-6) return short_number(tick);
    const int digits = std::max(0, static_cast<int>(-std::floor(std::log10(distance) + 1e-9)));
    return with_digits(tick + 0.0, digits);
  }

  [[nodiscard]] double place(double value) const {
    if (logarithmic) return (std::log10(value) - first) / (last - first);
    return (value - first) / (last - first);
  }
};

/// The largest of 1, 2 and 5 times a power of ten that cuts the range into enough parts.
double tick_distance(double range) {
  const double rough = range / kNumTicks;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power <= rough * 1.0001) return factor * power;
  }
  return power;
}

Axis linear_axis(double least, double most) {
  if (!(most > least)) most = least + (least == 0.0 ? 1.0 : std::abs(least) * 0.1);
  const double distance = tick_distance(most - least);
  Axis axis{.first = std::floor(least / distance) * distance,
            .last = std::ceil(most / distance) * distance,
            .distance = distance};
  const auto count = static_cast<int>(std::lround((axis.last - axis.first) / distance));
  for (int i = 0; i <= count; ++i) axis.ticks.push_back(axis.first + i * distance);
  return axis;
}

Axis logarithmic_axis(double least, double most) {
  Axis axis{.first = std::floor(std::log10(least)),
            .last = std::ceil(std::log10(most)),
            .logarithmic = true};
  if (axis.last <= axis.first) axis.last = axis.first + 1.0;
  const double stride = std::max(1.0, std::ceil((axis.last - axis.first) / 8.0));
  for (double power = axis.first; power <= axis.last; power += stride) {
    axis.ticks.push_back(std::pow(10.0, power));
  }
  return axis;
}

/// The points of a series that can be drawn.
std::vector<std::pair<double, double>> drawable(const LineChart& chart,
                                                const LineChart::Series& series) {
  std::vector<std::pair<double, double>> points;
  for (const auto& [x, y] : series.points) {
    const bool good = std::isfinite(x) && std::isfinite(y) && (!chart.logarithmic || y > 0.0);
    if (good) points.emplace_back(x, y);
  }
  return points;
}

class Plot {
 public:
  Plot(const Axis& x, const Axis& y) : x_(x), y_(y) {}

  [[nodiscard]] double x_at(double value) const {
    return kLeft + x_.place(value) * (kWidth - kLeft - kRight);
  }
  [[nodiscard]] double y_at(double value) const {
    return kHeight - kBottom - y_.place(value) * (kHeight - kTop - kBottom);
  }

  [[nodiscard]] std::string axes(const std::string& x_label) const {
    std::string svg;
    for (const double tick : y_.ticks) {
      svg += line_from(kLeft, y_at(tick), kWidth - kRight, y_at(tick), "grid");
      svg += text_at(kLeft - 6.0, y_at(tick) + 4.0, "end", y_.label(tick));
    }
    for (const double tick : x_.ticks) {
      svg += text_at(x_at(tick), kHeight - kBottom + 16.0, "middle", x_.label(tick));
    }
    svg += line_from(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "axis");
    svg += text_at((kLeft + kWidth - kRight) / 2.0, kHeight - 6.0, "middle", x_label);
    return svg;
  }

  [[nodiscard]] std::string mark(const LineChart::Mark& mark) const {
    const double place = x_.place(mark.x);
    if (!(place >= 0.0 && place <= 1.0)) return "";
    const std::string x = coordinate(x_at(mark.x));
    return concat("<line class=\"mark\" x1=\"", x, "\" y1=\"", coordinate(kTop), "\" x2=\"", x,
                  "\" y2=\"", coordinate(kHeight - kBottom), "\" stroke=\"",
                  series_color(mark.color), "\"><title>", escaped(mark.text), "</title></line>\n");
  }

  [[nodiscard]] std::string series(const std::vector<std::pair<double, double>>& points,
                                   const LineChart::Series& series) const {
    const std::string color = series_color(series.color);
    std::string path;
    for (const auto& [x, y] : points) {
      path += concat(path.empty() ? "M" : "L", coordinate(x_at(x)), " ", coordinate(y_at(y)));
    }
    std::string svg = concat("<path d=\"", path, "\" stroke=\"", color, "\"",
                             series.dashed ? " stroke-dasharray=\"5 4\"" : "", "><title>",
                             escaped(series.name), "</title></path>\n");
    // Points tell their values when the mouse is over them.
    constexpr std::size_t kMostPoints = 80;
    const std::size_t stride = points.size() / kMostPoints + 1;
    for (std::size_t i = 0; i < points.size(); i += stride) {
      const auto& [x, y] = points[i];
      svg += concat("<circle cx=\"", coordinate(x_at(x)), "\" cy=\"", coordinate(y_at(y)),
                    "\" r=\"2.5\" fill=\"", color, "\"><title>", escaped(series.name), ": ",
                    short_number(y), " at ", short_number(x), "</title></circle>\n");
    }
    return svg;
  }

 private:
  Axis x_;
  Axis y_;
};

/// The key of a part of a chart: a square, or a line as the chart draws it.
struct Key {
  std::string name;
  std::string color;
  /// The style of a line in CSS; empty: a square.
  std::string_view line = "";
};

std::string legend(const std::vector<Key>& keys) {
  std::string html = "<figcaption>";
  for (const Key& key : keys) {
    html += concat("<span><i ", key.line.empty() ? "" : "class=\"line\" ", "style=\"",
                   key.line.empty() ? "background:" : concat("border-top:3px ", key.line, " "),
                   key.color, "\"></i>", escaped(key.name), "</span> ");
  }
  return html + "</figcaption>";
}

std::string figure(double height, const std::string& title, const std::string& svg,
                   const std::string& caption) {
  // Not in the picture, whose texts have one line: names of runs may be long.
  return concat("<figure><div class=\"title\">", escaped(title), "</div>\n<svg viewBox=\"0 0 ",
                kWidth, " ", coordinate(height), "\" role=\"img\" aria-label=\"", escaped(title),
                "\">\n", svg, "</svg>", caption, "</figure>\n");
}

}  // namespace

std::string coordinate(double value) { return with_digits(value, 1); }

std::string text_at(double x, double y, std::string_view anchor, const std::string& text) {
  return concat("<text x=\"", coordinate(x), "\" y=\"", coordinate(y), "\" text-anchor=\"", anchor,
                "\">", escaped(text), "</text>\n");
}

std::string series_color(std::size_t k) {
  return std::string(kSeriesColors[k % kSeriesColors.size()]);
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return "–";
  // Large numbers without an exponent, up to a million.
  if (std::abs(value) >= 1e3 && std::abs(value) < 1e6) return with_digits(value, 0);
  return with_digits(value, 4, std::chars_format::general);
}

std::string line_chart(const LineChart& chart) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  double x_least = kNone;
  double x_most = -kNone;
  double y_least = kNone;
  double y_most = -kNone;
  for (const auto& series : chart.series) {
    for (const auto& [x, y] : drawable(chart, series)) {
      x_least = std::min(x_least, x);
      x_most = std::max(x_most, x);
      y_least = std::min(y_least, y);
      y_most = std::max(y_most, y);
    }
  }
  if (x_least == kNone) return "";
  const Plot plot(
      linear_axis(std::min(x_least, 0.0), x_most),
      chart.logarithmic ? logarithmic_axis(y_least, y_most) : linear_axis(y_least, y_most));
  std::string svg = plot.axes(chart.x_label);
  for (const LineChart::Mark& mark : chart.marks) svg += plot.mark(mark);
  std::vector<Key> keys;
  for (const auto& series : chart.series) {
    const auto points = drawable(chart, series);
    if (points.empty()) continue;
    svg += plot.series(points, series);
    keys.push_back({.name = series.name,
                    .color = series_color(series.color),
                    .line = series.dashed ? "dashed" : "solid"});
  }
  return figure(kHeight, chart.title, svg, legend(keys));
}

std::string stacked_bars(const StackedBars& chart) {
  double most = 0.0;
  for (const auto& bar : chart.bars) {
    double sum = 0.0;
    for (const double value : bar.values) sum += std::max(value, 0.0);
    most = std::max(most, sum);
  }
  if (!(most > 0.0) || !std::isfinite(most)) return "";
  const double scale = (kWidth - 2.0 * kLeft - kRight) / most;
  std::string svg;
  double y = kTop;
  for (const auto& bar : chart.bars) {
    svg += text_at(kLeft - 6.0, y + kBarHeight - 5.0, "end", bar.name);
    double x = kLeft;
    double sum = 0.0;
    for (std::size_t k = 0; k < bar.values.size(); ++k) {
      const double value = std::max(bar.values[k], 0.0);
      svg += concat("<rect x=\"", coordinate(x), "\" y=\"", coordinate(y), "\" width=\"",
                    coordinate(value * scale), "\" height=\"", coordinate(kBarHeight), "\" fill=\"",
                    chart.parts[k].color, "\"><title>", escaped(chart.parts[k].name), ": ",
                    short_number(value), " ", escaped(chart.unit), "</title></rect>\n");
      x += value * scale;
      sum += value;
    }
    svg +=
        text_at(x + 6.0, y + kBarHeight - 5.0, "start", concat(short_number(sum), " ", chart.unit));
    y += kBarHeight + kBarGap;
  }
  std::vector<Key> keys;
  for (const StackedBars::Part& part : chart.parts) {
    keys.push_back({.name = part.name, .color = part.color});
  }
  return figure(y + kBarGap, chart.title, svg, legend(keys));
}

}  // namespace gossamer::apps

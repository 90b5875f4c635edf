#pragma once
// Charts as SVG text that stands inside an HTML page: no scripts, no files. No state; any thread
// may call.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gossamer::apps {

/// The colour of the k-th series, as `#rrggbb`. Colours repeat after some series.
std::string series_color(std::size_t k);
/// Four significant digits; all digits before the point from 1000 to a million.
std::string short_number(double value);
/// A length of a picture, with a digit behind the point.
std::string coordinate(double value);
/// Text at a place of a picture. `anchor` says which end of the text stands there: `start`,
/// `middle` or `end`.
std::string text_at(double x, double y, std::string_view anchor, const std::string& text);

struct LineChart {
  struct Series {
    std::string name;
    /// x and y; points that are not finite are left out.
    std::vector<std::pair<double, double>> points;
    /// The index of the colour.
    std::size_t color = 0;
    bool dashed = false;
  };
  /// A line from top to bottom.
  struct Mark {
    double x = 0.0;
    /// What the page shows when the mouse is over it.
    std::string text;
    /// The index of the colour.
    std::size_t color = 0;
  };
  std::string title;
  std::string x_label;
  std::vector<Series> series;
  /// Marks in the chart. Marks beside the points of the series are left out.
  std::vector<Mark> marks = {};
  /// True: powers of ten stand at equal distances on the y axis; values <= 0 are left out.
  bool logarithmic = false;
};

/// The chart; empty if no series has a point.
std::string line_chart(const LineChart& chart);

struct StackedBars {
  std::string title;
  struct Part {
    std::string name;
    /// The color as `#rrggbb`.
    std::string color;
  };
  std::vector<Part> parts;
  struct Bar {
    std::string name;
    std::vector<double> values;
  };
  std::vector<Bar> bars;
  /// The unit of the values.
  std::string unit;
};

/// The bars, one below the other; empty if there are none.
std::string stacked_bars(const StackedBars& chart);

}  // namespace gossamer::apps

#include "apps/topology/topology_plot.hpp"

#include "base/error.hpp"
#include "base/text.hpp"

#ifdef GOSSAMER_HAVE_CAIRO

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numbers>
#include <utility>
#include <vector>

#include <cairo-svg.h>
#include <cairo.h>

namespace gossamer::apps {
namespace {

constexpr std::int64_t kMostRounds = 16;
constexpr int kMostRanks = 512;
constexpr double kPanel = 240.0;
constexpr double kMargin = 28.0;
constexpr double kTitle = 36.0;
constexpr double kMostNumbered = 64;

struct Color {
  double red, green, blue;
};
// Paul Tol's "bright" scheme: distinguishable with any kind of colour vision.
constexpr std::array kColors = {Color{0.27, 0.47, 0.67}, Color{0.93, 0.40, 0.47},
                                Color{0.13, 0.53, 0.20}, Color{0.67, 0.20, 0.47},
                                Color{0.80, 0.73, 0.27}, Color{0.40, 0.80, 0.93}};
constexpr Color kInk = {0.2, 0.2, 0.2};

struct Point {
  double x = 0.0;
  double y = 0.0;
};

/// Owns a surface and its drawing context.
class Canvas {
 public:
  Canvas(double width, double height, const std::string& path)
      : svg_(path.ends_with(".svg")),
        path_(path),
        surface_(svg_ ? cairo_svg_surface_create(path.c_str(), width, height)
                      : cairo_image_surface_create(CAIRO_FORMAT_ARGB32, static_cast<int>(width),
                                                   static_cast<int>(height)),
                 cairo_surface_destroy),
        pen_(cairo_create(surface_.get()), cairo_destroy) {
    check(cairo_surface_status(surface_.get()));
    cairo_set_source_rgb(pen(), 1.0, 1.0, 1.0);
    cairo_paint(pen());
    cairo_select_font_face(pen(), "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_line_join(pen(), CAIRO_LINE_JOIN_ROUND);
  }

  [[nodiscard]] cairo_t* pen() const { return pen_.get(); }

  void color(const Color& color, double alpha = 1.0) const {
    cairo_set_source_rgba(pen(), color.red, color.green, color.blue, alpha);
  }

  void text(const Point& at, const std::string& words, double size, bool centred) const {
    cairo_set_font_size(pen(), size);
    cairo_text_extents_t extents;
    cairo_text_extents(pen(), words.c_str(), &extents);
    const double left = centred ? at.x - extents.width / 2.0 - extents.x_bearing : at.x;
    const double base = centred ? at.y - extents.height / 2.0 - extents.y_bearing : at.y;
    cairo_move_to(pen(), left, base);
    cairo_show_text(pen(), words.c_str());
  }

  void finish() const {
    if (!svg_) check(cairo_surface_write_to_png(surface_.get(), path_.c_str()));
    cairo_surface_finish(surface_.get());
    check(cairo_surface_status(surface_.get()));
  }

 private:
  void check(cairo_status_t status) const {
    if (status == CAIRO_STATUS_SUCCESS) return;
    throw ConfigError("command line", "--plot",
                      concat(path_, " cannot be written: ", cairo_status_to_string(status)));
  }

  bool svg_;
  std::string path_;
  std::unique_ptr<cairo_surface_t, decltype(&cairo_surface_destroy)> surface_;
  std::unique_ptr<cairo_t, decltype(&cairo_destroy)> pen_;
};

/// Draws one round into its square.
class Panel {
 public:
  Panel(const Canvas& canvas, Point corner, int num_ranks)
      : canvas_(canvas), num_ranks_(num_ranks) {
    const double radius = kPanel / 2.0 - kMargin;
    const Point centre{corner.x + kPanel / 2.0, corner.y + kPanel / 2.0 + 6.0};
    for (int rank = 0; rank < num_ranks; ++rank) {
      const double angle = 2.0 * std::numbers::pi * rank / num_ranks - std::numbers::pi / 2.0;
      places_.push_back({centre.x + radius * std::cos(angle), centre.y + radius * std::sin(angle)});
    }
    dot_ = std::clamp(1.2 * radius * std::numbers::pi / num_ranks, 1.0, 9.0);
    idle_.assign(places_.size(), true);
  }

  void draw(const Round& round) {
    std::size_t turn = 0;
    for (const Edge& edge : round.edges) {
      if (edge.ranks.size() < 2) continue;
      edge_of(edge, kColors[turn++ % kColors.size()]);
    }
    for (const Arc& arc : round.arcs) {
      if (arc.from != arc.to) arrow(arc, kColors[static_cast<std::size_t>(arc.from) % 6]);
    }
    for (int rank = 0; rank < num_ranks_; ++rank) rank_of(rank);
  }

 private:
  [[nodiscard]] const Point& at(int rank) const { return places_[static_cast<std::size_t>(rank)]; }
  void busy(int rank) { idle_[static_cast<std::size_t>(rank)] = false; }

  void edge_of(const Edge& edge, const Color& color) {
    cairo_t* pen = canvas_.pen();
    for (const int rank : edge.ranks) busy(rank);
    cairo_move_to(pen, at(edge.ranks.front()).x, at(edge.ranks.front()).y);
    for (const int rank : edge.ranks) cairo_line_to(pen, at(rank).x, at(rank).y);
    if (edge.ranks.size() > 2) {
      cairo_close_path(pen);
      canvas_.color(color, 0.25);
      cairo_fill_preserve(pen);
    }
    canvas_.color(color);
    cairo_set_line_width(pen, std::min(2.0, dot_));
    cairo_stroke(pen);
  }

  void arrow(const Arc& arc, const Color& color) {
    busy(arc.from);
    busy(arc.to);
    const Point& from = at(arc.from);
    const Point& to = at(arc.to);
    const double length = std::hypot(to.x - from.x, to.y - from.y);
    const Point along{(to.x - from.x) / length, (to.y - from.y) / length};
    // A little to the right of the straight line, so that both directions can be seen.
    const Point aside{-along.y * 0.3 * dot_, along.x * 0.3 * dot_};
    const Point tip{to.x - along.x * dot_ + aside.x, to.y - along.y * dot_ + aside.y};
    cairo_t* pen = canvas_.pen();
    canvas_.color(color, 0.85);
    cairo_set_line_width(pen, std::min(1.4, dot_));
    cairo_move_to(pen, from.x + aside.x, from.y + aside.y);
    cairo_line_to(pen, tip.x, tip.y);
    cairo_stroke(pen);
    const double head = std::clamp(dot_ * 0.8, 2.0, 7.0);
    const Point back{tip.x - along.x * head, tip.y - along.y * head};
    cairo_move_to(pen, tip.x, tip.y);
    cairo_line_to(pen, back.x - along.y * head / 2.0, back.y + along.x * head / 2.0);
    cairo_line_to(pen, back.x + along.y * head / 2.0, back.y - along.x * head / 2.0);
    cairo_close_path(pen);
    cairo_fill(pen);
  }

  void rank_of(int rank) const {
    cairo_t* pen = canvas_.pen();
    cairo_new_sub_path(pen);
    cairo_arc(pen, at(rank).x, at(rank).y, dot_, 0.0, 2.0 * std::numbers::pi);
    idle_[static_cast<std::size_t>(rank)] ? canvas_.color({1.0, 1.0, 1.0}) : canvas_.color(kInk);
    cairo_fill_preserve(pen);
    canvas_.color(kInk);
    cairo_set_line_width(pen, 1.0);
    cairo_stroke(pen);
    if (num_ranks_ > kMostNumbered || dot_ < 5.0) return;
    canvas_.color(idle_[static_cast<std::size_t>(rank)] ? kInk : Color{1.0, 1.0, 1.0});
    canvas_.text(at(rank), std::to_string(rank), dot_, true);
  }

  const Canvas& canvas_;
  int num_ranks_;
  double dot_ = 1.0;
  std::vector<Point> places_;
  std::vector<bool> idle_;
};

}  // namespace

void plot_topology(const Topology& topology, const World& world, const std::string& path) {
  if (!path.ends_with(".svg") && !path.ends_with(".png")) {
    throw ConfigError("command line", "--plot",
                      concat(path, " is no picture, allowed: a name that ends with .svg or .png"));
  }
  if (world.size > kMostRanks) {
    throw ConfigError(
        "command line", "--plot",
        concat("nothing could be seen of ", world.size, " ranks, allowed: up to ", kMostRanks));
  }
  const std::int64_t num_rounds = std::min(kMostRounds, topology.period().value_or(8));
  const std::int64_t columns = std::min<std::int64_t>(num_rounds, 4);
  const std::int64_t rows = (num_rounds + columns - 1) / columns;
  const double width = std::max(2.0, static_cast<double>(columns)) * kPanel;
  const Canvas canvas(width, kTitle + static_cast<double>(rows) * kPanel, path);
  canvas.color(kInk);
  const std::string repeats =
      topology.period() ? concat("period ", *topology.period()) : std::string("never repeats");
  canvas.text({12.0, 24.0}, concat(topology.name(), ", ", world.size, " ranks, ", repeats), 15.0,
              false);
  for (std::int64_t k = 0; k < num_rounds; ++k) {
    const Point corner{static_cast<double>(k % columns) * kPanel,
                       kTitle + static_cast<double>(k / columns) * kPanel};
    const Round round = topology.round(k);
    canvas.color(kInk);
    canvas.text(
        {corner.x + 12.0, corner.y + 10.0},
        concat("round ", k, round.node_size > 1 ? concat(", nodes of ", round.node_size) : ""),
        11.0, false);
    Panel(canvas, corner, world.size).draw(flat_round(round, world.size));
  }
  canvas.finish();
}

}  // namespace gossamer::apps

#else

namespace gossamer::apps {

void plot_topology(const Topology& /*topology*/, const World& /*world*/, const std::string& path) {
  throw ConfigError("command line", "--plot",
                    concat(path,
                           ": this program was built without cairo (Debian: "
                           "libcairo2-dev), so it cannot draw"));
}

}  // namespace gossamer::apps

#endif

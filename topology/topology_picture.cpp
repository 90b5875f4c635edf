#include "topology/topology_picture.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/markup.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

constexpr std::int64_t kMostDrawnRounds = 16;
constexpr int kMostDrawnRanks = 512;
/// A circle of more ranks has no room for their numbers.
constexpr int kMostNumbered = 64;
constexpr std::int64_t kMostColumns = 4;
// Lengths are SVG's user units, which are pixels at first.
constexpr double kPanel = 240.0;
constexpr double kRadius = 92.0;
constexpr double kTitle = 36.0;
// The grey of the last one would look like a rank that sits out.
constexpr std::size_t kNumColors = kSeriesColors.size() - 1;
constexpr std::string_view kInk = "#333333";

struct Point {
  double x = 0.0;
  double y = 0.0;
};

/// Writes a number with at most two digits behind the point.
std::string number(double value) {
  // Adding zero turns -0 into 0.
  return shortest(std::round(100.0 * value) / 100.0 + 0.0);
}

std::string pair(const Point& point) { return concat(number(point.x), " ", number(point.y)); }

std::string text_at(const Point& at, const std::string& words, double size) {
  return concat("<text x=\"", number(at.x), "\" y=\"", number(at.y), "\" font-size=\"",
                number(size), "\" fill=\"", kInk, "\">", escaped(words), "</text>\n");
}

/// One round in its square.
class Panel {
 public:
  explicit Panel(int num_ranks)
      : dot_(std::clamp(1.2 * kRadius * std::numbers::pi / num_ranks, 1.0, 9.0)),
        is_busy_(static_cast<std::size_t>(num_ranks), false) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      const double angle = 2.0 * std::numbers::pi * rank / num_ranks - std::numbers::pi / 2.0;
      places_.push_back({kPanel / 2.0 + kRadius * std::cos(angle),
                         kPanel / 2.0 + 6.0 + kRadius * std::sin(angle)});
    }
  }

  std::string draw(const Round& round) {
    std::string svg;
    std::size_t turn = 0;
    for (const Edge& edge : round.edges) {
      if (edge.ranks.size() > 1) svg += edge_of(edge, kSeriesColors[turn++ % kNumColors]);
    }
    for (const Arc& arc : round.arcs) {
      if (arc.from == arc.to) continue;
      svg += arrow(arc, kSeriesColors[static_cast<std::size_t>(arc.from) % kNumColors]);
    }
    for (std::size_t rank = 0; rank < places_.size(); ++rank) svg += rank_of(rank);
    return svg;
  }

 private:
  const Point& use(int rank) {
    is_busy_[static_cast<std::size_t>(rank)] = true;
    return places_[static_cast<std::size_t>(rank)];
  }

  std::string edge_of(const Edge& edge, std::string_view color) {
    std::string points;
    for (const int rank : edge.ranks) points += concat(points.empty() ? "" : " ", pair(use(rank)));
    return concat("<polygon class=\"edge\" points=\"", points, "\" stroke=\"", color,
                  "\" stroke-width=\"", number(std::min(2.0, dot_)), "\" fill=\"", color,
                  "\" fill-opacity=\"0.25\" stroke-linejoin=\"round\"/>\n");
  }

  std::string arrow(const Arc& arc, std::string_view color) {
    const Point from = use(arc.from);
    const Point to = use(arc.to);
    const double length = std::hypot(to.x - from.x, to.y - from.y);
    const Point along{(to.x - from.x) / length, (to.y - from.y) / length};
    // A little to the right of the straight line, so that both directions can be seen.
    const Point aside{-along.y * 0.3 * dot_, along.x * 0.3 * dot_};
    const Point start{from.x + aside.x, from.y + aside.y};
    const Point tip{to.x - along.x * dot_ + aside.x, to.y - along.y * dot_ + aside.y};
    const double head = std::clamp(dot_ * 0.8, 2.0, 7.0);
    const Point back{tip.x - along.x * head, tip.y - along.y * head};
    const Point left{back.x - along.y * head / 2.0, back.y + along.x * head / 2.0};
    const Point right{back.x + along.y * head / 2.0, back.y - along.x * head / 2.0};
    return concat("<path class=\"arc\" d=\"M ", pair(start), " L ", pair(tip), " L ", pair(left),
                  " L ", pair(right), " L ", pair(tip), "\" stroke=\"", color, "\" stroke-width=\"",
                  number(std::min(1.4, dot_)), "\" fill=\"", color, "\"/>\n");
  }

  std::string rank_of(std::size_t rank) const {
    const Point& at = places_[rank];
    const std::string_view inside = is_busy_[rank] ? kInk : "white";
    const std::string_view outside = is_busy_[rank] ? "white" : kInk;
    std::string svg =
        concat("<circle class=\"rank\" cx=\"", number(at.x), "\" cy=\"", number(at.y), "\" r=\"",
               number(dot_), "\" stroke=\"", kInk, "\" fill=\"", inside, "\"/>\n");
    if (places_.size() > kMostNumbered) return svg;
    return svg + concat("<text x=\"", number(at.x), "\" y=\"", number(at.y), "\" font-size=\"",
                        number(dot_), "\" fill=\"", outside,
                        "\" text-anchor=\"middle\" dominant-baseline=\"central\">", rank,
                        "</text>\n");
  }

  double dot_;
  std::vector<Point> places_;
  std::vector<bool> is_busy_;
};

std::string panel_of(const Topology& topology, int world_size, std::int64_t k,
                     const Point& corner) {
  const Round round = topology.round(k);
  const std::string nodes = round.node_size > 1 ? concat(", nodes of ", round.node_size) : "";
  return concat("<g class=\"round\" transform=\"translate(", pair(corner), ")\">\n",
                text_at({12.0, 10.0}, concat("round ", k, nodes), 11.0),
                Panel(world_size).draw(flat_round(round, world_size)), "</g>\n");
}

}  // namespace

std::string topology_picture(const Topology& topology, int world_size,
                             std::optional<std::int64_t> round) {
  if (world_size > kMostDrawnRanks) {
    throw ConfigError(concat("nothing could be seen of ", world_size, " ranks, allowed: up to ",
                             kMostDrawnRanks));
  }
  const std::int64_t first = round.value_or(0);
  const std::int64_t num_rounds =
      round ? 1 : std::min(kMostDrawnRounds, topology.period().value_or(kMostDrawnRounds / 2));
  const std::int64_t num_rows = (num_rounds + kMostColumns - 1) / kMostColumns;
  // The title needs two squares.
  const double width =
      kPanel * static_cast<double>(std::clamp<std::int64_t>(num_rounds, 2, kMostColumns));
  const double height = kTitle + kPanel * static_cast<double>(num_rows);
  const std::string repeats =
      topology.period() ? concat("period ", *topology.period()) : std::string("never repeats");
  const std::string title = concat(topology.name(), ", ", world_size, " ranks, ", repeats);
  std::string svg =
      concat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", number(width), "\" height=\"",
             number(height), "\" viewBox=\"0 0 ", number(width), " ", number(height),
             "\" font-family=\"sans-serif\">\n<title>", escaped(title), "</title>\n",
             "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
             text_at({12.0, 24.0}, title, 15.0));
  for (std::int64_t k = 0; k < num_rounds; ++k) {
    svg += panel_of(topology, world_size, first + k,
                    {static_cast<double>(k % kMostColumns) * kPanel,
                     kTitle + static_cast<double>(k / kMostColumns) * kPanel});
  }
  return svg + "</svg>\n";
}

}  // namespace gossamer

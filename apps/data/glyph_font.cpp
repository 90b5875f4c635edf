#include "apps/data/glyph_font.hpp"

#include <array>
#include <cmath>
#include <numbers>
#include <span>
#include <stdexcept>

namespace gossamer::apps {
namespace {

/// Part of an ellipse with axes along x and y. Angles are in degrees. 0 points to the right and 90
/// to the bottom, because y points down; so growing angles run clockwise on the page.
struct Arc {
  double x;
  double y;
  double radius_x;
  double radius_y;
  double from;
  double to;
};

struct Glyph {
  std::span<const GlyphSegment> lines;
  std::span<const Arc> arcs;
};

/// Degrees per straight piece. At 28 pixels the corners between pieces are invisible.
constexpr double kDegreesPerPiece = 20;

constexpr double kTop = 0.18;
constexpr double kBottom = 0.82;

constexpr std::array kArcs0 = {Arc{0.50, 0.50, 0.19, 0.32, 0, 360}};
constexpr std::array kLines1 = {GlyphSegment{0.37, 0.32, 0.53, kTop},
                                GlyphSegment{0.53, kTop, 0.53, kBottom}};
constexpr std::array kLines2 = {GlyphSegment{0.6727, 0.45, 0.30, kBottom},
                                GlyphSegment{0.30, kBottom, 0.70, kBottom}};
constexpr std::array kArcs2 = {Arc{0.50, 0.36, 0.1994, 0.18, 190, 390}};
constexpr std::array kArcs3 = {Arc{0.48, 0.34, 0.17, 0.16, 200, 450},
                               Arc{0.48, 0.66, 0.20, 0.16, 270, 520}};
constexpr std::array kLines4 = {GlyphSegment{0.58, kTop, 0.28, 0.62},
                                GlyphSegment{0.28, 0.62, 0.73, 0.62},
                                GlyphSegment{0.60, 0.38, 0.60, kBottom}};
constexpr std::array kLines5 = {GlyphSegment{0.68, kTop, 0.36, kTop},
                                GlyphSegment{0.36, kTop, 0.3386, 0.4786}};
constexpr std::array kArcs5 = {Arc{0.48, 0.62, 0.20, 0.20, 225, 505}};
constexpr std::array kArcs6 = {Arc{0.50, 0.63, 0.19, 0.19, 0, 360},
                               Arc{0.64, 0.63, 0.33, 0.45, 180, 265}};
constexpr std::array kLines7 = {GlyphSegment{0.30, kTop, 0.70, kTop},
                                GlyphSegment{0.70, kTop, 0.44, kBottom}};
constexpr std::array kArcs8 = {Arc{0.50, 0.335, 0.16, 0.155, 0, 360},
                               Arc{0.50, 0.655, 0.19, 0.165, 0, 360}};
constexpr std::array kArcs9 = {Arc{0.50, 0.37, 0.19, 0.19, 0, 360},
                               Arc{0.36, 0.37, 0.33, 0.45, 0, 85}};

constexpr std::array<Glyph, kGlyphCount> kFont = {
    Glyph{.lines = {}, .arcs = kArcs0},      Glyph{.lines = kLines1, .arcs = {}},
    Glyph{.lines = kLines2, .arcs = kArcs2}, Glyph{.lines = {}, .arcs = kArcs3},
    Glyph{.lines = kLines4, .arcs = {}},     Glyph{.lines = kLines5, .arcs = kArcs5},
    Glyph{.lines = {}, .arcs = kArcs6},      Glyph{.lines = kLines7, .arcs = {}},
    Glyph{.lines = {}, .arcs = kArcs8},      Glyph{.lines = {}, .arcs = kArcs9},
};

void cut(const Arc& arc, std::vector<GlyphSegment>& segments) {
  const int pieces = static_cast<int>(std::ceil((arc.to - arc.from) / kDegreesPerPiece));
  const auto angle = [&](int piece) {
    return (arc.from + (arc.to - arc.from) * piece / pieces) * std::numbers::pi / 180.0;
  };
  for (int i = 0; i < pieces; ++i) {
    segments.push_back({.x0 = arc.x + arc.radius_x * std::cos(angle(i)),
                        .y0 = arc.y + arc.radius_y * std::sin(angle(i)),
                        .x1 = arc.x + arc.radius_x * std::cos(angle(i + 1)),
                        .y1 = arc.y + arc.radius_y * std::sin(angle(i + 1))});
  }
}

}  // namespace

std::vector<GlyphSegment> glyph_segments(std::int64_t digit) {
  if (digit < 0 || digit >= kGlyphCount) {
    throw std::logic_error("glyph_segments: the font holds the digits 0 to 9 only");
  }
  const Glyph& glyph = kFont[static_cast<std::size_t>(digit)];
  std::vector<GlyphSegment> segments(glyph.lines.begin(), glyph.lines.end());
  for (const Arc& arc : glyph.arcs) cut(arc, segments);
  return segments;
}

}  // namespace gossamer::apps

#pragma once
// A stroke font of the ten digits, drawn for this project: what the data set `glyphs` renders.
// Pure functions, safe from any thread.

#include <cstdint>
#include <vector>

namespace gossamer::apps {

constexpr std::int64_t kGlyphCount = 10;

/// A straight piece of a stroke in the unit square: x to the right, y down.
struct GlyphSegment {
  double x0 = 0;
  double y0 = 0;
  double x1 = 0;
  double y1 = 0;
};

/// The strokes of `digit`, arcs already cut into straight pieces; at most 64 of them. The glyph
/// stands upright in the middle of the unit square, about 0.4 wide and 0.64 high.
/// Throws std::logic_error unless 0 <= digit < kGlyphCount.
std::vector<GlyphSegment> glyph_segments(std::int64_t digit);

}  // namespace gossamer::apps

#pragma once
// A stroke font of the ten digits, drawn for this project; the data set `glyphs` renders it. Pure
// functions, safe from any thread.

#include <cstdint>
#include <vector>

namespace gossamer::apps {

constexpr std::int64_t kGlyphCount = 10;

/// A straight piece of a stroke in the unit square; x points to the right, y down.
struct GlyphSegment {
  double x0 = 0;
  double y0 = 0;
  double x1 = 0;
  double y1 = 0;
};

/// The strokes of `digit`, at most 64 straight pieces; arcs are already cut into such pieces. The
/// glyph stands upright in the middle of the unit square, about 0.4 wide and 0.64 high. Throws
/// std::logic_error unless 0 <= digit < kGlyphCount.
std::vector<GlyphSegment> glyph_segments(std::int64_t digit);

}  // namespace gossamer::apps

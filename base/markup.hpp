#pragma once
// Helpers for pictures and pages: SVG and HTML that the program writes as text.
//
// Thread safety: functions without state.

#include <array>
#include <string>
#include <string_view>

namespace gossamer {

/// Colours of series and rounds, as `#rrggbb`: Paul Tol's "bright" scheme, distinguishable with any
/// kind of colour vision. The last colour is grey.
inline constexpr std::array<std::string_view, 7> kSeriesColors = {
    "#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#777777"};

/// The text with the characters replaced that mean something in SVG and HTML. A name may come from
/// a user's file.
std::string escaped(std::string_view text);

}  // namespace gossamer

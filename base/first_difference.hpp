#pragma once
// Where two texts of lines differ first, for messages.
//
// Thread safety: functions without state.

#include <optional>
#include <string>

namespace gossamer {

struct LineDifference {
  /// The first line that differs, in quotes: of a long line the part around the difference, and
  /// `nothing` for a text that has ended before.
  std::string one;
  std::string other;
};

/// The first line that differs; nothing for texts with the same lines.
std::optional<LineDifference> first_difference(const std::string& one, const std::string& other);

}  // namespace gossamer

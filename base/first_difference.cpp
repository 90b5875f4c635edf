#include "base/first_difference.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/text.hpp"

namespace gossamer {
namespace {

/// Cuts the text at its line breaks, into one piece more than there are breaks.
std::vector<std::string> cut_lines(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

/// The line in quotes. Of a long line, the part around the byte `place`.
std::string shown_line(const std::vector<std::string>& lines, std::size_t number,
                       std::size_t place) {
  constexpr std::size_t kLongest = 160;
  constexpr std::size_t kBefore = 40;
  if (number >= lines.size()) return "nothing";
  const std::string& line = lines[number];
  if (line.size() <= kLongest) return concat('"', line, '"');
  const std::size_t first = place > kBefore ? place - kBefore : 0;
  return concat(first > 0 ? "\"..." : "\"", line.substr(first, kLongest),
                first + kLongest < line.size() ? "...\"" : "\"");
}

}  // namespace

std::optional<LineDifference> first_difference(const std::string& one, const std::string& other) {
  if (one == other) return std::nullopt;
  const std::vector<std::string> first = cut_lines(one);
  const std::vector<std::string> second = cut_lines(other);
  const auto place = std::ranges::mismatch(first, second).in1;
  const auto number = static_cast<std::size_t>(place - first.begin());
  std::size_t byte = 0;
  if (number < first.size() && number < second.size()) {
    const auto differs = std::ranges::mismatch(first[number], second[number]).in1;
    byte = static_cast<std::size_t>(differs - first[number].begin());
  }
  return LineDifference{shown_line(first, number, byte), shown_line(second, number, byte)};
}

}  // namespace gossamer

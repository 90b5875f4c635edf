#pragma once
// Helpers for the text of messages, and for reading names and numbers from text.

#include <charconv>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace gossamer {

/// All arguments written one after the other, as operator<< writes them.
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

/// The items of a range with `separator` between them.
template <class Range>
std::string join(const Range& range, std::string_view separator) {
  std::ostringstream out;
  bool first = true;
  for (const auto& item : range) {
    if (!first) out << separator;
    out << item;
    first = false;
  }
  return out.str();
}

/// Reads a number that takes up the whole text. Returns false for any other text; `value` is then
/// unspecified.
template <class T>
bool parse_whole(std::string_view text, T& value) {
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc() && result.ptr == end;
}

/// The registry spelling of a name: `Accum_AdamW` and `accum-adamw` are one name.
std::string canonical_name(std::string_view name);

/// The candidate with the smallest edit distance to `word`. Empty when no candidate is close: a
/// distance of more than 2 and of more than a third of the word's letters is too far.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

/// ` (did you mean X?)` for a close candidate, otherwise an empty string.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

/// Bytes as lowercase hexadecimal digits, two for each byte.
std::string to_hex(std::string_view bytes);

/// A floating point number in the fewest digits that read back to the same value.
std::string shortest(double value);
/// A floating point number with so many digits: behind the point, or with chars_format::general in
/// all.
std::string with_digits(double value, int digits,
                        std::chars_format format = std::chars_format::fixed);

/// Returns the text as a terminal may show it, for text that comes from files. Control characters
/// other than the end of a line and the tabulator become `\\x1b` and the like. So do marks that
/// turn the direction of writing, and bytes that are no UTF-8.
std::string visible(std::string_view text);
/// Shows a name, which has to stay on its line: ends of lines are shown, too.
std::string visible_line(std::string_view name);

/// The text as one word of a POSIX shell, in quotes where it needs them: for commands that a
/// message tells the user to type.
std::string shell_word(const std::string& text);

/// `12.3 MB`, `640 B`: a number of bytes in powers of 1000.
std::string human_bytes(double bytes);

}  // namespace gossamer

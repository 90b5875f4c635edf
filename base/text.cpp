#include "base/text.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <utility>

namespace gossamer {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
    }
  }
  return row.back();
}

/// The number of bytes of the character that a text begins with, and its code; 0: no UTF-8.
std::pair<std::size_t, std::uint32_t> first_character(std::string_view text) {
  const auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t count = byte(0) < 0x80U   ? 1
                            : byte(0) < 0xc2U ? 0
                            : byte(0) < 0xe0U ? 2
                            : byte(0) < 0xf0U ? 3
                            : byte(0) < 0xf5U ? 4
                                              : 0;
  if (count == 0 || count > text.size()) return {0, 0};
  std::uint32_t code = count == 1 ? byte(0) : byte(0) & (0x7fU >> count);
  for (std::size_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return {0, 0};
    code = code << 6U | (byte(i) & 0x3fU);
  }
  const bool is_surrogate = code >= 0xd800U && code < 0xe000U;
  const bool is_too_long = (count == 3 && code < 0x800U) || (count == 4 && code < 0x10000U);
  if (is_surrogate || is_too_long || code > 0x10ffffU) return {0, 0};
  return {count, code};
}

bool commands_terminal(std::uint32_t code) {
  const bool is_control =
      (code < 0x20U && code != '\n' && code != '\t') || (code >= 0x7fU && code < 0xa0U);
  const bool is_direction = code == 0x61cU || code == 0x200eU || code == 0x200fU ||
                            (code >= 0x202aU && code <= 0x202eU) ||
                            (code >= 0x2066U && code <= 0x2069U);
  return is_control || is_direction;
}

/// The text with `\x1b` and the like for the bytes of characters that `hides` names, and for bytes
/// that are no UTF-8.
template <class Hides>
std::string escaped(std::string_view text, const Hides& hides) {
  std::string result;
  while (!text.empty()) {
    const auto [count, code] = first_character(text);
    const std::size_t length = std::max<std::size_t>(count, 1);
    if (count > 0 && !hides(code)) {
      result += text.substr(0, length);
    } else {
      for (const char c : text.substr(0, length)) {
        std::array<char, 8> escape{};
        std::snprintf(escape.data(), escape.size(), "\\x%02x", static_cast<unsigned char>(c));
        result += escape.data();
      }
    }
    text.remove_prefix(length);
  }
  return result;
}

}  // namespace

std::string canonical_name(std::string_view name) {
  std::string result(name);
  for (char& c : result) {
    c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance && distance < candidate.size()) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  const std::string best = nearest(word, candidates);
  return best.empty() ? "" : concat(" (did you mean ", best, "?)");
}

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 0xfU];
  }
  return text;
}

std::string shortest(double value) {
  std::array<char, 64> digits{};
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  return {digits.data(), result.ptr};
}

std::string with_digits(double value, int digits, std::chars_format format) {
  // The largest number has 309 digits before the point.
  std::array<char, 400> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, format, digits);
  return {text.data(), end.ptr};
}

std::string visible(std::string_view text) { return escaped(text, commands_terminal); }

std::string visible_line(std::string_view name) {
  return escaped(name, [](std::uint32_t code) { return code == '\n' || commands_terminal(code); });
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain = "@%+=:,./_-[]";
  const bool is_plain = !text.empty() && std::ranges::all_of(text, [kPlain](unsigned char letter) {
    return std::isalnum(letter) != 0 || kPlain.find(static_cast<char>(letter)) != kPlain.npos;
  });
  if (is_plain) return text;
  std::string word = "'";
  for (const char letter : text) {
    // A quote ends the quotes, stands for itself, and begins them anew.
    if (letter == '\'') {
      word += "'\\''";
    } else {
      word += letter;
    }
  }
  return word + "'";
}

std::string human_bytes(double bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  // A value that would be printed as 1000 is printed as 1 of the next unit instead.
  while (bytes >= (unit == 0 ? 999.5 : 999.95) && unit + 1 < kUnits.size()) {
    bytes /= 1000.0;
    ++unit;
  }
  return concat(with_digits(bytes, unit == 0 ? 0 : 1), " ", kUnits[unit]);
}

}  // namespace gossamer

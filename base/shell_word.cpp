#include "base/shell_word.hpp"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace gossamer {

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

}  // namespace gossamer

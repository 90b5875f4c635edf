#include "base/option.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/text.hpp"

namespace gossamer {
namespace {

/// What a key may hold, and its default, as a configuration shows them.
struct Words {
  std::string range;
  /// Nothing: the key must be given.
  std::optional<std::string> fallback;
};

Words words_of(const IntegerRule& rule) {
  Words words{describe(rule), std::nullopt};
  if (rule.fallback) words.fallback = std::to_string(*rule.fallback);
  return words;
}

Words words_of(const NumberRule& rule) {
  Words words{describe(rule), std::nullopt};
  if (rule.fallback) words.fallback = shortest(*rule.fallback);
  return words;
}

template <class Rule>
Words words_of(const NullOr<Rule>& rule) {
  return {describe(rule.rule), "null"};
}

Words words_of(const FlagRule& rule) { return {"true or false", rule.fallback ? "true" : "false"}; }

Words words_of(const PathRule& rule) { return {"text", std::optional<std::string>(rule.fallback)}; }

Words words_of(const ChoiceRule& rule) {
  const auto end = std::ranges::find(rule.words, std::string_view());
  return {concat("one of ", join(std::vector<std::string>(rule.words.begin(), end), ", ")),
          std::optional<std::string>(rule.fallback)};
}

Words words_of(const NumberPairRule& rule) {
  return {concat("a list of two, each ", describe(rule.each)),
          concat("[", shortest(rule.fallback.first), ", ", shortest(rule.fallback.second), "]")};
}

Words words_of(const RangeRule& /*rule*/) {
  return {"[first, last) with 0 <= first < last", "null"};
}

Words words_of(const NamedRule& rule) {
  return {"a name, or a section of key: value lines", std::optional<std::string>(rule.fallback)};
}

}  // namespace

std::string describe(const IntegerRule& rule) {
  using Limits = std::numeric_limits<std::int64_t>;
  const bool low = rule.min != Limits::min();
  const bool high = rule.max != Limits::max();
  if (low && high) return concat("an integer from ", rule.min, " to ", rule.max);
  if (low) return concat("an integer >= ", rule.min);
  if (high) return concat("an integer <= ", rule.max);
  return "an integer";
}

std::string describe(const NumberRule& rule) {
  std::string text = "a number";
  const bool low = std::isfinite(rule.min);
  if (low) text += concat(rule.above_min ? " > " : " >= ", shortest(rule.min));
  if (std::isfinite(rule.max)) {
    text += concat(low ? " and" : "", rule.below_max ? " < " : " <= ", shortest(rule.max));
  }
  if (!rule.word.empty()) text += concat(", or ", rule.word);
  return text;
}

std::string OptionEntry::text() const {
  const Words words = std::visit([](const auto& typed) { return words_of(typed); }, rule);
  const std::string start = concat(meaning, "; ", words.range, ", ");
  if (words.fallback) {
    return concat(start, "default ", *words.fallback, note.empty() ? "" : ": ", note);
  }
  return concat(start, "must be given", note.empty() ? "" : " ", note);
}

}  // namespace gossamer

#include "base/option.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/text.hpp"

namespace gossamer {
namespace {

// The default of a key, as a configuration spells it; nothing: the key must be given.

std::optional<std::string> spelled(const IntegerRule& rule) {
  return rule.fallback ? std::optional(std::to_string(*rule.fallback)) : std::nullopt;
}

std::optional<std::string> spelled(const NumberRule& rule) {
  return rule.fallback ? std::optional(shortest(*rule.fallback)) : std::nullopt;
}

template <class Rule>
std::optional<std::string> spelled(const NullOr<Rule>& /*rule*/) {
  return "null";
}

template <class Rule>
std::optional<std::string> spelled(const WordOr<Rule>& rule) {
  const std::optional<std::string> number = spelled(rule.rule);
  return number ? number : std::string(rule.word);
}

std::optional<std::string> spelled(const FlagRule& rule) {
  return rule.fallback ? "true" : "false";
}

std::optional<std::string> spelled(const NumberPairRule& rule) {
  return concat("[", shortest(rule.fallback.first), ", ", shortest(rule.fallback.second), "]");
}

std::optional<std::string> spelled(const NumberListRule& /*rule*/) { return "null"; }

std::optional<std::string> spelled(const RangeRule& /*rule*/) { return "null"; }

/// Text, paths, choices and names.
template <class Rule>
std::optional<std::string> spelled(const Rule& rule) {
  if (rule.fallback && rule.fallback->empty()) return "\"\"";
  return std::optional<std::string>(rule.fallback);
}

}  // namespace

std::vector<std::string> ChoiceRule::all() const {
  if (names != nullptr) return names();
  return {words.begin(), std::ranges::find(words, std::string_view())};
}

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
  return text;
}

std::string describe(const NullOr<IntegerRule>& rule) { return describe(rule.rule); }
std::string describe(const NullOr<NumberRule>& rule) { return describe(rule.rule); }
std::string describe(const WordOr<IntegerRule>& rule) {
  return concat(describe(rule.rule), ", or ", rule.word);
}
std::string describe(const WordOr<NumberRule>& rule) {
  return concat(describe(rule.rule), ", or ", rule.word);
}
std::string describe(const FlagRule& /*rule*/) { return "true or false"; }
std::string describe(const TextRule& /*rule*/) { return "text"; }
std::string describe(const PathRule& /*rule*/) { return "text"; }
std::string describe(const ChoiceRule& rule) { return concat("one of ", join(rule.all(), ", ")); }
std::string describe(const NumberPairRule& rule) {
  return concat("a list of two, each ", describe(rule.each));
}
std::string describe(const NumberListRule& rule) {
  return concat("a list of one or more, each ", describe(rule.each));
}
std::string describe(const RangeRule& /*rule*/) { return "[first, last) with 0 <= first < last"; }
std::string describe(const NamedRule& /*rule*/) {
  return "a name, or a section of key: value lines";
}

std::string OptionEntry::range() const {
  return std::visit([](const auto& typed) { return describe(typed); }, rule);
}

std::optional<std::string> OptionEntry::fallback() const {
  return std::visit([](const auto& typed) { return spelled(typed); }, rule);
}

std::string OptionEntry::text() const {
  const std::string start = concat(meaning, "; ", range(), ", ");
  if (const auto value = fallback()) {
    return concat(start, "default ", *value, note.empty() ? "" : ": ", note);
  }
  return concat(start, "must be given", note.empty() ? "" : " ", note);
}

}  // namespace gossamer

#pragma once
// An option of a plug-in, said once: its name, its meaning, its type with range and default. The
// plug-in's code reads it (Options::read()), its row lists it (OptionEntry), and the program prints
// it.
//
//   constexpr IntegerOption kLayers{"layers", "hidden layers", {.fallback = 2, .min = 0}};
//   constexpr std::array kMlpOptions = option_list(kLayers);
//
//   const std::int64_t layers = options.read(kLayers);
//
// All of it is constant and thread safe.

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace gossamer {

/// Type and range of an integer. A key without a fallback must be given.
struct IntegerRule {
  std::optional<std::int64_t> fallback = std::nullopt;
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};

/// Type and range of a finite number. A key without a fallback must be given.
struct NumberRule {
  std::optional<double> fallback = std::nullopt;
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  /// True: the bound itself is not allowed.
  bool above_min = false;
  bool below_max = false;
};

struct FlagRule {
  bool fallback = false;
};

/// Any scalar, as the file spells it: `007` is the text `007`. A key without a fallback must be
/// given.
struct TextRule {
  std::optional<std::string_view> fallback = std::nullopt;
};

/// The path of a file or folder. A leading `~/` stands for the home folder of this process. A key
/// without a fallback must be given.
struct PathRule {
  std::optional<std::string_view> fallback = std::nullopt;
};

/// A rule for a value that is one of several words, in either spelling (`-` or `_`). A key without
/// a fallback must be given.
struct ChoiceRule {
  /// The words that are allowed. Empty words at the end do not count.
  std::array<std::string_view, 8> words = {};
  std::optional<std::string_view> fallback = std::nullopt;
  /// The words, where they are the names of a table; null: `words` are.
  std::vector<std::string> (*names)() = nullptr;

  [[nodiscard]] std::vector<std::string> all() const;
};

/// Two numbers `[a, b]`, each within a range.
struct NumberPairRule {
  std::pair<double, double> fallback;
  NumberRule each = {};
};

/// A list of one number or more, each within a range; null: the list is empty.
struct NumberListRule {
  NumberRule each = {};
};

/// `[first, last)` with 0 <= first < last, or null.
struct RangeRule {};

/// A name, or a section with a name and perhaps options. A key without a fallback must be given.
struct NamedRule {
  std::optional<std::string_view> fallback = std::nullopt;
};

/// A rule for a key whose absence has a meaning of its own.
template <class Rule>
struct NullOr {
  Rule rule = {};
};

/// A number, or a word that stands for none. The word is the default, unless the rule has one.
template <class Rule>
struct WordOr {
  std::string_view word;
  Rule rule = {};
};

template <class Rule>
struct TypedOption {
  std::string_view name;
  std::string_view meaning = {};
  Rule rule = {};
  /// More about the default, or about when the key must be given.
  std::string_view note = {};
};

using IntegerOption = TypedOption<IntegerRule>;
using OptionalIntegerOption = TypedOption<NullOr<IntegerRule>>;
using NumberOption = TypedOption<NumberRule>;
using OptionalNumberOption = TypedOption<NullOr<NumberRule>>;
using IntegerOrWordOption = TypedOption<WordOr<IntegerRule>>;
using NumberOrWordOption = TypedOption<WordOr<NumberRule>>;
using FlagOption = TypedOption<FlagRule>;
using TextOption = TypedOption<TextRule>;
using PathOption = TypedOption<PathRule>;
using ChoiceOption = TypedOption<ChoiceRule>;
using NumberPairOption = TypedOption<NumberPairRule>;
using NumberListOption = TypedOption<NumberListRule>;
using RangeOption = TypedOption<RangeRule>;
using NamedOption = TypedOption<NamedRule>;

// What a key may hold, as `an integer from 1 to 1000` or `a number > 0 and <= 1`.
std::string describe(const IntegerRule& rule);
std::string describe(const NumberRule& rule);
std::string describe(const NullOr<IntegerRule>& rule);
std::string describe(const NullOr<NumberRule>& rule);
std::string describe(const WordOr<IntegerRule>& rule);
std::string describe(const WordOr<NumberRule>& rule);
std::string describe(const FlagRule& rule);
std::string describe(const TextRule& rule);
std::string describe(const PathRule& rule);
std::string describe(const ChoiceRule& rule);
std::string describe(const NumberPairRule& rule);
std::string describe(const NumberListRule& rule);
std::string describe(const RangeRule& rule);
std::string describe(const NamedRule& rule);

/// An option of any type, as tables list it.
struct OptionEntry {
  std::string_view name;
  std::string_view meaning;
  std::variant<IntegerRule, NullOr<IntegerRule>, WordOr<IntegerRule>, NumberRule,
               NullOr<NumberRule>, WordOr<NumberRule>, FlagRule, TextRule, PathRule, ChoiceRule,
               NumberPairRule, NumberListRule, RangeRule, NamedRule>
      rule;
  std::string_view note;

  template <class Rule>
  // NOLINTNEXTLINE(google-explicit-constructor): tables are written as lists of options
  constexpr OptionEntry(const TypedOption<Rule>& option)
      : name(option.name), meaning(option.meaning), rule(option.rule), note(option.note) {}

  /// Meaning, range and default: `hidden layers; an integer from 0 to 1000, default 2`, or
  /// `the file; text, must be given`.
  [[nodiscard]] std::string text() const;
  /// What the key may hold, as `an integer from 0 to 1000`.
  [[nodiscard]] std::string range() const;
  /// The default as a configuration spells it; nothing: the key must be given.
  [[nodiscard]] std::optional<std::string> fallback() const;
};

/// The options of a row.
template <class... Rules>
constexpr std::array<OptionEntry, sizeof...(Rules)> option_list(
    const TypedOption<Rules>&... options) {
  return {options...};
}

}  // namespace gossamer

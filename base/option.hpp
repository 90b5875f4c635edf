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
  /// Set by Options::number_or(): a word that may stand in place of the number.
  std::string_view word = {};
};

struct FlagRule {
  bool fallback = false;
};

/// The path of a file or folder. A key without a fallback must be given.
struct PathRule {
  std::optional<std::string_view> fallback = std::nullopt;
};

/// One of a few words. A key without a fallback must be given.
struct ChoiceRule {
  /// Empty ones at the end do not count.
  std::array<std::string_view, 8> words;
  std::optional<std::string_view> fallback = std::nullopt;
};

/// Two numbers `[a, b]`, each within a range.
struct NumberPairRule {
  std::pair<double, double> fallback;
  NumberRule each = {};
};

/// `[first, last)`, or null.
struct RangeRule {};

/// A name, or a section with a name and perhaps options. A key without a fallback must be given.
struct NamedRule {
  std::optional<std::string_view> fallback = std::nullopt;
};

/// For keys whose absence has a meaning of its own.
template <class Rule>
struct NullOr {
  Rule rule = {};
};

template <class Rule>
struct TypedOption {
  std::string_view name;
  std::string_view meaning;
  Rule rule = {};
  /// More about the default, or about when the key must be given.
  std::string_view note = {};
};

using IntegerOption = TypedOption<IntegerRule>;
using OptionalIntegerOption = TypedOption<NullOr<IntegerRule>>;
using NumberOption = TypedOption<NumberRule>;
using OptionalNumberOption = TypedOption<NullOr<NumberRule>>;
using FlagOption = TypedOption<FlagRule>;
using PathOption = TypedOption<PathRule>;
using ChoiceOption = TypedOption<ChoiceRule>;
using NumberPairOption = TypedOption<NumberPairRule>;
using RangeOption = TypedOption<RangeRule>;
using NamedOption = TypedOption<NamedRule>;

/// `an integer from 1 to 1000`.
std::string describe(const IntegerRule& rule);
/// `a number > 0 and <= 1`.
std::string describe(const NumberRule& rule);

/// An option of any type, as tables list it.
struct OptionEntry {
  std::string_view name;
  std::string_view meaning;
  std::variant<IntegerRule, NullOr<IntegerRule>, NumberRule, NullOr<NumberRule>, FlagRule, PathRule,
               ChoiceRule, NumberPairRule, RangeRule, NamedRule>
      rule;
  std::string_view note;

  template <class Rule>
  // NOLINTNEXTLINE(google-explicit-constructor): tables are written as lists of options
  constexpr OptionEntry(const TypedOption<Rule>& option)
      : name(option.name), meaning(option.meaning), rule(option.rule), note(option.note) {}

  /// Meaning, range and default: `hidden layers; an integer from 0 to 1000, default 2`, or
  /// `the file; text, must be given`.
  [[nodiscard]] std::string text() const;
};

/// The options of a row.
template <class... Rules>
constexpr std::array<OptionEntry, sizeof...(Rules)> option_list(
    const TypedOption<Rules>&... options) {
  return {options...};
}

}  // namespace gossamer

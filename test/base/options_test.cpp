#include "base/options.hpp"

#include "test/base/thrown.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/yaml.hpp"

namespace gossamer {
namespace {

Options read(std::string_view text) { return Options(parse_yaml(text, "f.yaml")); }

/// Why an option cannot be read; empty: it can.
template <class Option>
std::string refusal(const Options& options, const Option& option) {
  return what_of<ConfigError>([&] { (void)options.read(option); });
}
template <class Option>
std::string refusal(const std::string& text, const Option& option) {
  return refusal(read(text), option);
}

TEST(Options, IntegersComeFromTheFileOrTheDefault) {
  const Options root = read("a: 5\nb: -3\nc: +7\nd: null\n");
  EXPECT_EQ(root.read(IntegerOption{.name = "a"}), 5);
  EXPECT_EQ(root.read(IntegerOption{.name = "b", .rule = {.fallback = 1}}), -3);
  EXPECT_EQ(root.read(IntegerOption{.name = "c"}), 7);
  EXPECT_EQ(root.read(IntegerOption{.name = "d", .rule = {.fallback = 9}}), 9);
  EXPECT_EQ(root.read(IntegerOption{.name = "missing", .rule = {.fallback = 10}}), 10);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(read("a: 9223372036854775807").read(IntegerOption{.name = "a"}), kMost);
  EXPECT_EQ(read("a: -9223372036854775808").read(IntegerOption{.name = "a"}), -kMost - 1);
}

TEST(Options, NumbersComeFromTheFileOrTheDefault) {
  const Options root = read("a: 0.1\nb: -3\nc: 1e-3\nd: +.5\ne: 1E+22\n");
  EXPECT_EQ(root.read(NumberOption{.name = "a"}), 0.1);
  EXPECT_EQ(root.read(NumberOption{.name = "b", .rule = {.fallback = 1}}), -3.0);
  EXPECT_EQ(root.read(NumberOption{.name = "c"}), 1e-3);
  EXPECT_EQ(root.read(NumberOption{.name = "d"}), 0.5);
  EXPECT_EQ(root.read(NumberOption{.name = "e"}), 1e22);
  EXPECT_EQ(root.read(NumberOption{.name = "missing", .rule = {.fallback = 2.5}}), 2.5);
}

TEST(Options, BoundsOfIntegersAreInclusive) {
  const IntegerRule rule{.min = 1, .max = 4};
  EXPECT_EQ(read("a: 1").read(IntegerOption{.name = "a", .rule = rule}), 1);
  EXPECT_EQ(read("a: 4").read(IntegerOption{.name = "a", .rule = rule}), 4);
  EXPECT_EQ(refusal("a: 0", IntegerOption{.name = "a", .rule = rule}),
            "f.yaml:1:4: a: 0 is out of range, allowed: an integer from 1 to 4");
  EXPECT_NE(refusal("a: 5", IntegerOption{.name = "a", .rule = rule}), "");
  EXPECT_EQ(refusal("a: -1", IntegerOption{.name = "a", .rule = {.min = 0}}),
            "f.yaml:1:4: a: -1 is out of range, allowed: an integer >= 0");
  EXPECT_EQ(refusal("a: 8", IntegerOption{.name = "a", .rule = {.max = 7}}),
            "f.yaml:1:4: a: 8 is out of range, allowed: an integer <= 7");
}

TEST(Options, BoundsOfNumbersAreAsTheRuleSays) {
  const NumberRule closed{.min = 0, .max = 1};
  const NumberRule open{.min = 0, .max = 1, .above_min = true, .below_max = true};
  for (const char* text : {"a: 0", "a: 1"}) {
    EXPECT_EQ(refusal(text, NumberOption{.name = "a", .rule = closed}), "") << text;
    EXPECT_NE(refusal(text, NumberOption{.name = "a", .rule = open}), "") << text;
  }
  EXPECT_EQ(read("a: 1e-300").read(NumberOption{.name = "a", .rule = open}), 1e-300);
  EXPECT_EQ(refusal("a: 1.5", NumberOption{.name = "a", .rule = closed}),
            "f.yaml:1:4: a: 1.5 is out of range, allowed: a number >= 0 and <= 1");
  EXPECT_EQ(refusal("a: 0", NumberOption{.name = "a", .rule = open}),
            "f.yaml:1:4: a: 0 is out of range, allowed: a number > 0 and < 1");
  EXPECT_EQ(refusal("a: -0.5", NumberOption{.name = "a", .rule = {.min = 0}}),
            "f.yaml:1:4: a: -0.5 is out of range, allowed: a number >= 0");
  EXPECT_EQ(refusal("a: 3", NumberOption{.name = "a", .rule = {.max = 2.5}}),
            "f.yaml:1:4: a: 3 is out of range, allowed: a number <= 2.5");
}

TEST(Options, IntegersRefuseOtherTypes) {
  for (const char* text : {"1.0", "1e3", "abc", "1x", "0x10", "true", "1 2", "+-5", "--5", "++5",
                           "+", "9223372036854775808", ".inf"}) {
    EXPECT_EQ(refusal(std::string("a: ") + text, IntegerOption{.name = "a"}),
              std::string("f.yaml:1:4: a: ") + text + " is not an integer, allowed: an integer");
  }
  EXPECT_EQ(refusal("a: '5'", IntegerOption{.name = "a"}),
            "f.yaml:1:4: a: \"5\" is not an integer, allowed: an integer");
  EXPECT_EQ(refusal("a: [1]", IntegerOption{.name = "a"}),
            "f.yaml:1:4: a: is a list, allowed: an integer");
  EXPECT_EQ(refusal("a: {b: 1}", IntegerOption{.name = "a", .rule = {.min = 2}}),
            "f.yaml:1:4: a: is a mapping, allowed: an integer >= 2");
}

TEST(Options, NumbersRefuseOtherTypes) {
  for (const char* text : {"abc", "1x", "0x10", "true", "1,5", "+-5", "1e", "1e999"}) {
    EXPECT_EQ(refusal(std::string("a: ") + text, NumberOption{.name = "a"}),
              std::string("f.yaml:1:4: a: ") + text + " is not a number, allowed: a number");
  }
  EXPECT_EQ(refusal("a: \"0.5\"", NumberOption{.name = "a", .rule = {.min = 0}}),
            "f.yaml:1:4: a: \"0.5\" is not a number, allowed: a number >= 0");
  EXPECT_EQ(refusal("a: [1]", NumberOption{.name = "a"}),
            "f.yaml:1:4: a: is a list, allowed: a number");
}

TEST(Options, NumbersAreFinite) {
  for (const char* text : {".inf", "-.inf", ".nan", "inf", "-inf", "nan", "infinity"}) {
    EXPECT_EQ(refusal(std::string("a: ") + text, NumberOption{.name = "a"}),
              std::string("f.yaml:1:4: a: ") + text + " is not finite, allowed: a number");
  }
}

TEST(Options, RequiredKeysMustBeGiven) {
  const Options root = read("s:\n  n: null\nt: 1\n");
  const Options section = root.section("s");
  EXPECT_EQ(refusal(section, IntegerOption{.name = "k", .rule = {.min = 1}}),
            "f.yaml:2:3: s.k: is missing, allowed: an integer >= 1");
  EXPECT_EQ(refusal(section, NumberOption{.name = "n", .rule = {.min = 1}}),
            "f.yaml:2:6: s.n: is missing, allowed: a number >= 1");
  EXPECT_EQ(refusal(section, TextOption{.name = "x"}),
            "f.yaml:2:3: s.x: is missing, allowed: text");
  EXPECT_EQ(refusal(root, ChoiceOption{.name = "x", .rule = {.words = {"p", "q"}}}),
            "f.yaml:1:1: x: is missing, allowed: one of p, q");
  EXPECT_EQ(refusal(root.section("none").section("at"), IntegerOption{.name = "all"}),
            "f.yaml:1:1: none.at.all: is missing, allowed: an integer");
}

TEST(Options, OptionalValuesMayBeAbsent) {
  const Options root = read("a: 5\nb: 0.5\nc: null\n");
  EXPECT_EQ(root.read(OptionalIntegerOption{.name = "a"}), 5);
  EXPECT_EQ(root.read(OptionalNumberOption{.name = "b"}), 0.5);
  EXPECT_EQ(root.read(OptionalIntegerOption{.name = "c", .rule = {.rule = {.fallback = 3}}}),
            std::nullopt);
  EXPECT_EQ(root.read(OptionalNumberOption{.name = "missing", .rule = {.rule = {.fallback = 3}}}),
            std::nullopt);
  EXPECT_NE(refusal(root, OptionalIntegerOption{.name = "a", .rule = {.rule = {.max = 4}}}), "");
  EXPECT_NE(refusal(root, OptionalNumberOption{.name = "b", .rule = {.rule = {.min = 1}}}), "");
}

TEST(Options, AWordMayStandInPlaceOfANumber) {
  const Options root = read("a: Auto\nb: 0.5\nc: other\nd: [auto]\n");
  EXPECT_EQ(root.read(NumberOrWordOption{.name = "a", .rule = {.word = "auto"}}), std::nullopt);
  EXPECT_EQ(root.read(NumberOrWordOption{.name = "b", .rule = {.word = "auto"}}), 0.5);
  EXPECT_EQ(root.read(NumberOrWordOption{.name = "missing",
                                         .rule = {.word = "auto", .rule = {.fallback = 3}}}),
            3.0);
  EXPECT_EQ(root.read(NumberOrWordOption{.name = "missing", .rule = {.word = "auto"}}),
            std::nullopt);
  EXPECT_EQ(root.value_of("missing"), "auto");
  EXPECT_EQ(
      refusal(root, NumberOrWordOption{.name = "c", .rule = {.word = "auto", .rule = {.min = 0}}}),
      "f.yaml:3:4: c: other is not a number, allowed: a number >= 0, or auto");
  EXPECT_NE(refusal(root, NumberOrWordOption{.name = "d", .rule = {.word = "auto"}}), "");
  EXPECT_EQ(root.resolved().front(), (ResolvedValue{"a", "auto"}));
}

TEST(Options, AWordMayStandInPlaceOfAnInteger) {
  const IntegerOrWordOption option{.name = "a", .rule = {.word = "auto", .rule = {.min = 1}}};
  EXPECT_EQ(read("a: auto").read(option), std::nullopt);
  EXPECT_EQ(read("").read(option), std::nullopt);
  EXPECT_EQ(read("a: 7").read(option), 7);
  EXPECT_EQ(refusal("a: 1.5", option),
            "f.yaml:1:4: a: 1.5 is not an integer, allowed: an integer >= 1, or auto");
}

TEST(Options, WordsOfAChoiceMayBeNamesOfATable) {
  const ChoiceOption option{.name = "a", .rule = {.fallback = "gossip", .names = [] {
                                                    return std::vector<std::string>{"gossip"};
                                                  }}};
  EXPECT_EQ(read("").read(option), "gossip");
  EXPECT_EQ(refusal("a: ring", option), "f.yaml:1:4: a: ring is unknown, allowed: one of gossip");
  EXPECT_EQ(read("a: ring").read(option, std::nullopt, {"ring"}), "ring");
}

TEST(OptionEntry, SaysRangeAndDefault) {
  const OptionEntry streams = IntegerOrWordOption{
      "streams", "connections", {.word = "auto", .rule = {.min = 1, .max = 64}}};
  EXPECT_EQ(streams.text(), "connections; an integer from 1 to 64, or auto, default auto");
  const OptionEntry file = PathOption{"file", "the secret", {.fallback = ""}};
  EXPECT_EQ(file.text(), "the secret; text, default \"\"");
  const OptionEntry match = TextOption{"match", "an expression", {}, "unless vectors is true"};
  EXPECT_EQ(match.text(), "an expression; text, must be given unless vectors is true");
  EXPECT_EQ(match.fallback(), std::nullopt);
}

TEST(Options, TellsTheValueOfAKeyThatHasBeenRead) {
  const Options section = read("s: {a: 7.50}\nb: 1\n").section("s");
  EXPECT_EQ(section.value_of("a"), "");
  (void)section.read(NumberOption{.name = "a"});
  (void)section.read(FlagOption{.name = "on", .rule = {.fallback = true}});
  EXPECT_EQ(section.value_of("a"), "7.5");
  EXPECT_EQ(section.value_of("on"), "true");
  EXPECT_EQ(section.value_of("b"), "");
}

TEST(Options, FlagsAreTrueOrFalse) {
  EXPECT_TRUE(read("a: true").read(FlagOption{.name = "a"}));
  EXPECT_FALSE(read("a: false").read(FlagOption{.name = "a", .rule = {.fallback = true}}));
  EXPECT_TRUE(read("").read(FlagOption{.name = "a", .rule = {.fallback = true}}));
  EXPECT_FALSE(read("a:").read(FlagOption{.name = "a"}));
  for (const char* text : {"yes", "1", "True", "on"}) {
    EXPECT_EQ(refusal(std::string("a: ") + text, FlagOption{.name = "a"}),
              std::string("f.yaml:1:4: a: ") + text + " is not a flag, allowed: true or false");
  }
  EXPECT_EQ(refusal("a: 'true'", FlagOption{.name = "a"}),
            "f.yaml:1:4: a: \"true\" is not a flag, allowed: true or false");
  EXPECT_EQ(refusal("a: []", FlagOption{.name = "a"}),
            "f.yaml:1:4: a: is a list, allowed: true or false");
}

TEST(Options, TextIsTakenAsWritten) {
  EXPECT_EQ(read("a: some text").read(TextOption{.name = "a"}), "some text");
  EXPECT_EQ(read("a: '5'").read(TextOption{.name = "a"}), "5");
  EXPECT_EQ(read("a: 007").read(TextOption{.name = "a"}), "007");
  EXPECT_EQ(read("a: ''").read(TextOption{.name = "a", .rule = {.fallback = "x"}}), "");
  EXPECT_EQ(read("a:").read(TextOption{.name = "a", .rule = {.fallback = "x"}}), "x");
  EXPECT_EQ(refusal("a: [x]", TextOption{.name = "a", .rule = {.fallback = "y"}}),
            "f.yaml:1:4: a: is a list, allowed: text");
}

TEST(Options, PathsMayBeginWithTheHomeFolder) {
  const Options options = read("{a: ~/runs, b: runs/~, c: ~other/runs}");
  const char* home = std::getenv("HOME");
  ASSERT_NE(home, nullptr);
  EXPECT_EQ(options.read(PathOption{.name = "a"}), std::string(home) + "/runs");
  // Hosts may have different home folders, and compare what is recorded.
  EXPECT_EQ(options.value_of("a"), "\"~/runs\"");
  EXPECT_EQ(options.read(PathOption{.name = "b"}), "runs/~");
  EXPECT_EQ(options.read(PathOption{.name = "d", .rule = {.fallback = "x"}}), "x");
  EXPECT_CONTAINS(refusal(options, PathOption{.name = "c"}),
                  "c: ~other/runs begins with ~, allowed: ~/");
}

TEST(Options, ChoicesUniteSpellings) {
  constexpr std::array<std::string_view, 8> allowed = {"all-reduce", "gossip", "one_peer"};
  const ChoiceOption needed{.name = "a", .rule = {.words = allowed}};
  const ChoiceOption option{.name = "a", .rule = {.words = allowed, .fallback = "gossip"}};
  EXPECT_EQ(read("a: All_Reduce").read(needed), "all-reduce");
  EXPECT_EQ(read("a: one-peer").read(needed), "one_peer");
  EXPECT_EQ(read("").read(option), "gossip");
  EXPECT_EQ(refusal("a: gosip", option),
            "f.yaml:1:4: a: gosip is unknown (did you mean gossip?), allowed: one of all-reduce, "
            "gossip, one_peer");
  EXPECT_EQ(refusal("a: zzz", needed),
            "f.yaml:1:4: a: zzz is unknown, allowed: one of all-reduce, gossip, one_peer");
  EXPECT_EQ(refusal("a: [gossip]", option),
            "f.yaml:1:4: a: is a list, allowed: one of all-reduce, gossip, one_peer");
}

TEST(Options, NumberPairsAreListsOfTwo) {
  const NumberPairOption option{
      .name = "a",
      .rule = {.fallback = {0.5, 0.6}, .each = {.min = 0, .max = 1, .below_max = true}}};
  EXPECT_EQ(read("a: [0.9, 0.999]").read(option), std::pair(0.9, 0.999));
  EXPECT_EQ(read("").read(option), std::pair(0.5, 0.6));
  const std::string allowed = "a list of two, each a number >= 0 and < 1";
  EXPECT_EQ(refusal("a: 0.9", option), "f.yaml:1:4: a: is 0.9, allowed: " + allowed);
  EXPECT_EQ(refusal("a: [0.9]", option), "f.yaml:1:4: a: is a list, allowed: " + allowed);
  EXPECT_EQ(refusal("a: [0.9, 1]", option),
            "f.yaml:1:10: a: 1 is out of range, allowed: a number >= 0 and < 1");
  EXPECT_NE(refusal("a: [0.9, null]", option), "");
  EXPECT_NE(refusal("a: [0, '0']", option), "");
  EXPECT_NE(refusal("a: [0, 0, 0]", option), "");
}

TEST(Options, NumbersAreAListOfAnyLength) {
  const NumberListOption option{.name = "a", .rule = {.each = {.min = 1, .max = 1e6}}};
  const Options options = read("a: [1, 2.5, 1e6]");
  EXPECT_EQ(options.read(option), (std::vector<double>{1, 2.5, 1e6}));
  EXPECT_EQ(options.value_of("a"), "[1, 2.5, 1e+06]");
  EXPECT_EQ(read("a: [7]").read(option), std::vector<double>{7});
  EXPECT_TRUE(read("").read(option).empty());
  const std::string allowed = "a list of one or more, each a number >= 1 and <= 1e+06";
  EXPECT_EQ(refusal("a: 7", option), "f.yaml:1:4: a: is 7, allowed: " + allowed);
  EXPECT_EQ(refusal("a: []", option), "f.yaml:1:4: a: is a list, allowed: " + allowed);
  EXPECT_EQ(refusal("a: [7, 0]", option),
            "f.yaml:1:8: a: 0 is out of range, allowed: a number >= 1 and <= 1e+06");
  EXPECT_CONTAINS(refusal("a: [7, b]", option), "f.yaml:1:8: a: b is not a number");
}

TEST(Options, RangesHoldSomething) {
  EXPECT_EQ(read("a: [0, 5]").read(RangeOption{.name = "a"}),
            std::pair(std::int64_t{0}, std::int64_t{5}));
  EXPECT_EQ(read("").read(RangeOption{.name = "a"}), std::nullopt);
  const std::string allowed = "[first, last) with 0 <= first < last";
  EXPECT_EQ(refusal("a: [3, 3]", RangeOption{.name = "a"}),
            "f.yaml:1:4: a: holds nothing, allowed: " + allowed);
  EXPECT_NE(refusal("a: [5, 3]", RangeOption{.name = "a"}), "");
  EXPECT_NE(refusal("a: [-1, 3]", RangeOption{.name = "a"}), "");
  EXPECT_NE(refusal("a: [0, 3.5]", RangeOption{.name = "a"}), "");
  EXPECT_EQ(refusal("a: 3", RangeOption{.name = "a"}), "f.yaml:1:4: a: is 3, allowed: " + allowed);
  EXPECT_EQ(refusal("a: [1, 2, 3]", RangeOption{.name = "a"}),
            "f.yaml:1:4: a: is a list, allowed: " + allowed);
}

}  // namespace
}  // namespace gossamer

#include "base/options.hpp"

#include "test/base/thrown.hpp"

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/yaml.hpp"

namespace gossamer {
namespace {

Options read(std::string_view text) { return Options(parse_yaml(text, "f.yaml")); }

TEST(Options, IntegersComeFromTheFileOrTheDefault) {
  const Options root = read("a: 5\nb: -3\nc: +7\nd: null\n");
  EXPECT_EQ(root.integer("a", {}), 5);
  EXPECT_EQ(root.integer("b", {.fallback = 1}), -3);
  EXPECT_EQ(root.integer("c", {}), 7);
  EXPECT_EQ(root.integer("d", {.fallback = 9}), 9);
  EXPECT_EQ(root.integer("missing", {.fallback = 10}), 10);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(read("a: 9223372036854775807").integer("a", {}), kMost);
  EXPECT_EQ(read("a: -9223372036854775808").integer("a", {}), -kMost - 1);
}

TEST(Options, NumbersComeFromTheFileOrTheDefault) {
  const Options root = read("a: 0.1\nb: -3\nc: 1e-3\nd: +.5\ne: 1E+22\n");
  EXPECT_EQ(root.number("a", {}), 0.1);
  EXPECT_EQ(root.number("b", {.fallback = 1}), -3.0);
  EXPECT_EQ(root.number("c", {}), 1e-3);
  EXPECT_EQ(root.number("d", {}), 0.5);
  EXPECT_EQ(root.number("e", {}), 1e22);
  EXPECT_EQ(root.number("missing", {.fallback = 2.5}), 2.5);
}

TEST(Options, BoundsOfIntegersAreInclusive) {
  const IntegerRule rule{.min = 1, .max = 4};
  EXPECT_EQ(read("a: 1").integer("a", rule), 1);
  EXPECT_EQ(read("a: 4").integer("a", rule), 4);
  EXPECT_EQ(what_of<ConfigError>([&] { (void)read("a: 0").integer("a", rule); }),
            "f.yaml:1:4: a: 0 is out of range, allowed: an integer from 1 to 4");
  EXPECT_NE(what_of<ConfigError>([&] { (void)read("a: 5").integer("a", rule); }), "");
  EXPECT_EQ(what_of<ConfigError>([&] { (void)read("a: -1").integer("a", {.min = 0}); }),
            "f.yaml:1:4: a: -1 is out of range, allowed: an integer >= 0");
  EXPECT_EQ(what_of<ConfigError>([&] { (void)read("a: 8").integer("a", {.max = 7}); }),
            "f.yaml:1:4: a: 8 is out of range, allowed: an integer <= 7");
}

TEST(Options, BoundsOfNumbersAreAsTheRuleSays) {
  const NumberRule closed{.min = 0, .max = 1};
  const NumberRule open{.min = 0, .max = 1, .above_min = true, .below_max = true};
  for (const char* text : {"a: 0", "a: 1"}) {
    EXPECT_EQ(what_of<ConfigError>([&] { (void)read(text).number("a", closed); }), "") << text;
    EXPECT_NE(what_of<ConfigError>([&] { (void)read(text).number("a", open); }), "") << text;
  }
  EXPECT_EQ(read("a: 1e-300").number("a", open), 1e-300);
  EXPECT_EQ(what_of<ConfigError>([&] { (void)read("a: 1.5").number("a", closed); }),
            "f.yaml:1:4: a: 1.5 is out of range, allowed: a number >= 0 and <= 1");
  EXPECT_EQ(what_of<ConfigError>([&] { (void)read("a: 0").number("a", open); }),
            "f.yaml:1:4: a: 0 is out of range, allowed: a number > 0 and < 1");
  EXPECT_EQ(what_of<ConfigError>([&] { (void)read("a: -0.5").number("a", {.min = 0}); }),
            "f.yaml:1:4: a: -0.5 is out of range, allowed: a number >= 0");
  EXPECT_EQ(what_of<ConfigError>([&] { (void)read("a: 3").number("a", {.max = 2.5}); }),
            "f.yaml:1:4: a: 3 is out of range, allowed: a number <= 2.5");
}

TEST(Options, IntegersRefuseOtherTypes) {
  for (const char* text : {"1.0", "1e3", "abc", "1x", "0x10", "true", "1 2", "+-5", "--5", "++5",
                           "+", "9223372036854775808", ".inf"}) {
    EXPECT_EQ(what_of<ConfigError>([&] { (void)read(std::string("a: ") + text).integer("a", {}); }),
              std::string("f.yaml:1:4: a: ") + text + " is not an integer, allowed: an integer");
  }
  EXPECT_EQ(what_of<ConfigError>([] { (void)read("a: '5'").integer("a", {}); }),
            "f.yaml:1:4: a: \"5\" is not an integer, allowed: an integer");
  EXPECT_EQ(what_of<ConfigError>([] { (void)read("a: [1]").integer("a", {}); }),
            "f.yaml:1:4: a: is a list, allowed: an integer");
  EXPECT_EQ(what_of<ConfigError>([] { (void)read("a: {b: 1}").integer("a", {.min = 2}); }),
            "f.yaml:1:4: a: is a mapping, allowed: an integer >= 2");
}

TEST(Options, NumbersRefuseOtherTypes) {
  for (const char* text : {"abc", "1x", "0x10", "true", "1,5", "+-5", "1e", "1e999"}) {
    EXPECT_EQ(what_of<ConfigError>([&] { (void)read(std::string("a: ") + text).number("a", {}); }),
              std::string("f.yaml:1:4: a: ") + text + " is not a number, allowed: a number");
  }
  EXPECT_EQ(what_of<ConfigError>([] { (void)read("a: \"0.5\"").number("a", {.min = 0}); }),
            "f.yaml:1:4: a: \"0.5\" is not a number, allowed: a number >= 0");
  EXPECT_EQ(what_of<ConfigError>([] { (void)read("a: [1]").number("a", {}); }),
            "f.yaml:1:4: a: is a list, allowed: a number");
}

TEST(Options, NumbersAreFinite) {
  for (const char* text : {".inf", "-.inf", ".nan", "inf", "-inf", "nan", "infinity"}) {
    EXPECT_EQ(what_of<ConfigError>([&] { (void)read(std::string("a: ") + text).number("a", {}); }),
              std::string("f.yaml:1:4: a: ") + text + " is not finite, allowed: a number");
  }
}

TEST(Options, RequiredKeysMustBeGiven) {
  const Options root = read("s:\n  n: null\nt: 1\n");
  const Options section = root.section("s");
  EXPECT_EQ(what_of<ConfigError>([&] { (void)section.integer("k", {.min = 1}); }),
            "f.yaml:2:3: s.k: is missing, allowed: an integer >= 1");
  EXPECT_EQ(what_of<ConfigError>([&] { (void)section.number("n", {.min = 1}); }),
            "f.yaml:2:6: s.n: is missing, allowed: a number >= 1");
  EXPECT_EQ(what_of<ConfigError>([&] { (void)section.text("x", std::nullopt); }),
            "f.yaml:2:3: s.x: is missing, allowed: text");
  EXPECT_EQ(what_of<ConfigError>([&] {
              (void)root.choice("x", {"p", "q"}, std::nullopt);
            }),
            "f.yaml:1:1: x: is missing, allowed: one of p, q");
  EXPECT_EQ(
      what_of<ConfigError>([&] { (void)root.section("none").section("at").integer("all", {}); }),
      "f.yaml:1:1: none.at.all: is missing, allowed: an integer");
}

TEST(Options, OptionalValuesMayBeAbsent) {
  const Options root = read("a: 5\nb: 0.5\nc: null\n");
  EXPECT_EQ(root.optional_integer("a", {}), 5);
  EXPECT_EQ(root.optional_number("b", {}), 0.5);
  EXPECT_EQ(root.optional_integer("c", {.fallback = 3}), std::nullopt);
  EXPECT_EQ(root.optional_number("missing", {.fallback = 3}), std::nullopt);
  EXPECT_NE(what_of<ConfigError>([&] { (void)root.optional_integer("a", {.max = 4}); }), "");
  EXPECT_NE(what_of<ConfigError>([&] { (void)root.optional_number("b", {.min = 1}); }), "");
}

TEST(Options, AWordMayStandInPlaceOfANumber) {
  const Options root = read("a: Auto\nb: 0.5\nc: other\nd: [auto]\n");
  EXPECT_EQ(root.number_or("auto", "a", {}), std::nullopt);
  EXPECT_EQ(root.number_or("auto", "b", {}), 0.5);
  EXPECT_EQ(root.number_or("auto", "missing", {.fallback = 3}), 3.0);
  EXPECT_EQ(root.number_or("auto", "missing", {}), std::nullopt);
  EXPECT_EQ(root.value_of("missing"), "auto");
  EXPECT_EQ(what_of<ConfigError>([&] { (void)root.number_or("auto", "c", {.min = 0}); }),
            "f.yaml:3:4: c: other is not a number, allowed: a number >= 0, or auto");
  EXPECT_NE(what_of<ConfigError>([&] { (void)root.number_or("auto", "d", {}); }), "");
  EXPECT_EQ(root.resolved().front(), (ResolvedValue{"a", "auto"}));
}

TEST(Options, TellsTheValueOfAKeyThatHasBeenRead) {
  const Options section = read("s: {a: 7.50}\nb: 1\n").section("s");
  EXPECT_EQ(section.value_of("a"), "");
  (void)section.number("a", {});
  (void)section.flag("on", true);
  EXPECT_EQ(section.value_of("a"), "7.5");
  EXPECT_EQ(section.value_of("on"), "true");
  EXPECT_EQ(section.value_of("b"), "");
}

TEST(Options, FlagsAreTrueOrFalse) {
  EXPECT_TRUE(read("a: true").flag("a", false));
  EXPECT_FALSE(read("a: false").flag("a", true));
  EXPECT_TRUE(read("").flag("a", true));
  EXPECT_FALSE(read("a:").flag("a", false));
  for (const char* text : {"yes", "1", "True", "on"}) {
    EXPECT_EQ(what_of<ConfigError>([&] { (void)read(std::string("a: ") + text).flag("a", false); }),
              std::string("f.yaml:1:4: a: ") + text + " is not a flag, allowed: true or false");
  }
  EXPECT_EQ(what_of<ConfigError>([] { (void)read("a: 'true'").flag("a", false); }),
            "f.yaml:1:4: a: \"true\" is not a flag, allowed: true or false");
  EXPECT_EQ(what_of<ConfigError>([] { (void)read("a: []").flag("a", false); }),
            "f.yaml:1:4: a: is a list, allowed: true or false");
}

TEST(Options, TextIsTakenAsWritten) {
  EXPECT_EQ(read("a: some text").text("a", std::nullopt), "some text");
  EXPECT_EQ(read("a: '5'").text("a", std::nullopt), "5");
  EXPECT_EQ(read("a: 007").text("a", std::nullopt), "007");
  EXPECT_EQ(read("a: ''").text("a", "x"), "");
  EXPECT_EQ(read("a:").text("a", "x"), "x");
  EXPECT_EQ(what_of<ConfigError>([] { (void)read("a: [x]").text("a", "y"); }),
            "f.yaml:1:4: a: is a list, allowed: text");
}

TEST(Options, PathsMayBeginWithTheHomeFolder) {
  const Options options = read("{a: ~/runs, b: runs/~, c: ~other/runs}");
  const char* home = std::getenv("HOME");
  ASSERT_NE(home, nullptr);
  EXPECT_EQ(options.file_path("a", std::nullopt), std::string(home) + "/runs");
  // Hosts may have different home folders, and compare what is recorded.
  EXPECT_EQ(options.value_of("a"), "\"~/runs\"");
  EXPECT_EQ(options.file_path("b", std::nullopt), "runs/~");
  EXPECT_EQ(options.file_path("d", "x"), "x");
  EXPECT_TRUE(contains(what_of<ConfigError>([&] { (void)options.file_path("c", std::nullopt); }),
                       "c: ~other/runs begins with ~, allowed: ~/"));
}

TEST(Options, ChoicesUniteSpellings) {
  const std::vector<std::string> allowed = {"all-reduce", "gossip", "one_peer"};
  EXPECT_EQ(read("a: All_Reduce").choice("a", allowed, std::nullopt), "all-reduce");
  EXPECT_EQ(read("a: one-peer").choice("a", allowed, std::nullopt), "one_peer");
  EXPECT_EQ(read("").choice("a", allowed, "gossip"), "gossip");
  EXPECT_EQ(what_of<ConfigError>([&] { (void)read("a: gosip").choice("a", allowed, "gossip"); }),
            "f.yaml:1:4: a: gosip is unknown (did you mean gossip?), allowed: one of all-reduce, "
            "gossip, one_peer");
  EXPECT_EQ(what_of<ConfigError>([&] { (void)read("a: zzz").choice("a", allowed, std::nullopt); }),
            "f.yaml:1:4: a: zzz is unknown, allowed: one of all-reduce, gossip, one_peer");
  EXPECT_EQ(what_of<ConfigError>([&] { (void)read("a: [gossip]").choice("a", allowed, "gossip"); }),
            "f.yaml:1:4: a: is a list, allowed: one of all-reduce, gossip, one_peer");
}

TEST(Options, NumberPairsAreListsOfTwo) {
  const NumberRule rule{.min = 0, .max = 1, .below_max = true};
  EXPECT_EQ(read("a: [0.9, 0.999]").number_pair("a", {0, 0}, rule), std::pair(0.9, 0.999));
  EXPECT_EQ(read("").number_pair("a", {0.5, 0.6}, rule), std::pair(0.5, 0.6));
  const std::string allowed = "a list of two, each a number >= 0 and < 1";
  EXPECT_EQ(what_of<ConfigError>([&] {
              (void)read("a: 0.9").number_pair("a", {0, 0}, rule);
            }),
            "f.yaml:1:4: a: is 0.9, allowed: " + allowed);
  EXPECT_EQ(what_of<ConfigError>([&] {
              (void)read("a: [0.9]").number_pair("a", {0, 0}, rule);
            }),
            "f.yaml:1:4: a: is a list, allowed: " + allowed);
  EXPECT_EQ(what_of<ConfigError>([&] {
              (void)read("a: [0.9, 1]").number_pair("a", {0, 0}, rule);
            }),
            "f.yaml:1:10: a: 1 is out of range, allowed: a number >= 0 and < 1");
  EXPECT_NE(what_of<ConfigError>([&] {
              (void)read("a: [0.9, null]").number_pair("a", {0, 0}, rule);
            }),
            "");
  EXPECT_NE(what_of<ConfigError>([&] {
              (void)read("a: [0, '0']").number_pair("a", {0, 0}, rule);
            }),
            "");
  EXPECT_NE(what_of<ConfigError>([&] {
              (void)read("a: [0, 0, 0]").number_pair("a", {0, 0}, rule);
            }),
            "");
}

TEST(Options, NumbersAreAListOfAnyLength) {
  const NumberRule rule{.min = 1, .max = 1e6};
  const Options options = read("a: [1, 2.5, 1e6]");
  EXPECT_EQ(options.numbers("a", rule), (std::vector<double>{1, 2.5, 1e6}));
  EXPECT_EQ(options.value_of("a"), "[1, 2.5, 1e+06]");
  EXPECT_EQ(read("a: [7]").numbers("a", rule), std::vector<double>{7});
  EXPECT_TRUE(read("").numbers("a", rule).empty());
  const auto refusal = [&rule](const std::string& text) {
    return what_of<ConfigError>([&] { (void)read(text).numbers("a", rule); });
  };
  const std::string allowed = "a list of one or more, each a number >= 1 and <= 1e+06";
  EXPECT_EQ(refusal("a: 7"), "f.yaml:1:4: a: is 7, allowed: " + allowed);
  EXPECT_EQ(refusal("a: []"), "f.yaml:1:4: a: is a list, allowed: " + allowed);
  EXPECT_EQ(refusal("a: [7, 0]"),
            "f.yaml:1:8: a: 0 is out of range, allowed: a number >= 1 and <= 1e+06");
  EXPECT_TRUE(contains(refusal("a: [7, b]"), "f.yaml:1:8: a: b is not a number"));
}

TEST(Options, RangesHoldSomething) {
  EXPECT_EQ(read("a: [0, 5]").range("a"), std::pair(std::int64_t{0}, std::int64_t{5}));
  EXPECT_EQ(read("").range("a"), std::nullopt);
  const std::string allowed = "[first, last) with 0 <= first < last";
  EXPECT_EQ(what_of<ConfigError>([] { (void)read("a: [3, 3]").range("a"); }),
            "f.yaml:1:4: a: holds nothing, allowed: " + allowed);
  EXPECT_NE(what_of<ConfigError>([] { (void)read("a: [5, 3]").range("a"); }), "");
  EXPECT_NE(what_of<ConfigError>([] { (void)read("a: [-1, 3]").range("a"); }), "");
  EXPECT_NE(what_of<ConfigError>([] { (void)read("a: [0, 3.5]").range("a"); }), "");
  EXPECT_EQ(what_of<ConfigError>([] { (void)read("a: 3").range("a"); }),
            "f.yaml:1:4: a: is 3, allowed: " + allowed);
  EXPECT_EQ(what_of<ConfigError>([] { (void)read("a: [1, 2, 3]").range("a"); }),
            "f.yaml:1:4: a: is a list, allowed: " + allowed);
}

}  // namespace
}  // namespace gossamer

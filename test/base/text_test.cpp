#include "base/text.hpp"

#include "test/base/thrown.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/markup.hpp"
#include "base/registry.hpp"

namespace gossamer {
namespace {

TEST(Text, ConcatWritesAllArguments) {
  EXPECT_EQ(concat("a", 1, ' ', std::string("b"), -2L), "a1 b-2");
}

TEST(Text, JoinPutsSeparatorsOnlyBetween) {
  EXPECT_EQ(join(std::vector<int>{}, ", "), "");
  EXPECT_EQ(join(std::vector<int>{4}, ", "), "4");
  EXPECT_EQ(join(std::vector<std::string>{"a", "", "c"}, ", "), "a, , c");
}

TEST(Text, CanonicalNameUnitesSpellings) {
  EXPECT_EQ(canonical_name("Accum_AdamW"), "accum-adamw");
  EXPECT_EQ(canonical_name("accum-adamw"), "accum-adamw");
  EXPECT_EQ(canonical_name(""), "");
  EXPECT_EQ(canonical_name("caf\xC3\x89"), "caf\xC3\x89");
}

TEST(Text, NearestFindsSmallTypingErrors) {
  const std::vector<std::string> names = {"adam", "adamw", "sgd", "accum-adamw"};
  EXPECT_EQ(nearest("adma", names), "adam");
  EXPECT_EQ(nearest("adamww", names), "adamw");
  EXPECT_EQ(nearest("adam", names), "adam");
  EXPECT_EQ(nearest("acum-adam", names), "accum-adamw");
  EXPECT_EQ(nearest("dgs", names), "sgd");
}

TEST(Text, NearestPrefersTheFirstOfEquallyNear) {
  EXPECT_EQ(nearest("cat", std::vector<std::string>{"car", "cab"}), "car");
}

TEST(Text, NearestStaysSilentWhenNothingIsNear) {
  const std::vector<std::string> names = {"adam", "sgd"};
  EXPECT_EQ(nearest("momentum", names), "");
  EXPECT_EQ(nearest("", names), "");
  EXPECT_EQ(nearest("adam", std::vector<std::string>{}), "");
  // Two letters that both differ are not a typing error.
  EXPECT_EQ(nearest("xy", std::vector<std::string>{"lr"}), "");
  // A third of a long word may differ, not more.
  EXPECT_EQ(nearest("abcdefghiXXX", std::vector<std::string>{"abcdefghijkl"}), "abcdefghijkl");
  EXPECT_EQ(nearest("abcdefgXXXXX", std::vector<std::string>{"abcdefghijkl"}), "");
}

TEST(Text, DidYouMeanIsASentencePart) {
  const std::vector<std::string> names = {"seed"};
  EXPECT_EQ(did_you_mean("sede", names), " (did you mean seed?)");
  EXPECT_EQ(did_you_mean("zzzzz", names), "");
}

TEST(Text, ShortestReadsBackExactly) {
  EXPECT_EQ(shortest(0.1), "0.1");
  EXPECT_EQ(shortest(1e-3), "0.001");
  EXPECT_EQ(shortest(3.0), "3");
  EXPECT_EQ(shortest(-0.0), "-0");
  EXPECT_EQ(shortest(1e22), "1e+22");
  for (const double value : {1.0 / 3.0, 2.5e-308, std::numeric_limits<double>::max(),
                             std::numeric_limits<double>::denorm_min(), std::nextafter(1.0, 2.0)}) {
    EXPECT_EQ(std::strtod(shortest(value).c_str(), nullptr), value) << shortest(value);
  }
}

TEST(Text, HumanBytesUsesPowersOfAThousand) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(640), "640 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.0 kB");
  EXPECT_EQ(human_bytes(12.34e6), "12.3 MB");
  EXPECT_EQ(human_bytes(26214400), "26.2 MB");
  EXPECT_EQ(human_bytes(7.5e9), "7.5 GB");
  EXPECT_EQ(human_bytes(2e12), "2.0 TB");
  EXPECT_EQ(human_bytes(5e15), "5000.0 TB");
}

TEST(Text, HumanBytesRoundsIntoTheNextUnit) {
  EXPECT_EQ(human_bytes(999.7), "1.0 kB");
  EXPECT_EQ(human_bytes(999'940), "999.9 kB");
  EXPECT_EQ(human_bytes(999'999), "1.0 MB");
}

struct Row {
  std::string_view name;
  int value;
};
constexpr std::array kRows = {Row{"accum-adamw", 1}, Row{"sgd", 2}};

TEST(Registry, FindsRowsInEitherSpelling) {
  EXPECT_EQ(row_of(kRows, "optimizer", "Accum_AdamW").value, 1);
  EXPECT_EQ(find_row(kRows, "sgd")->value, 2);
  EXPECT_EQ(find_row(kRows, "sg"), nullptr);
  EXPECT_EQ(names_of(kRows), (std::vector<std::string>{"accum-adamw", "sgd"}));
}

TEST(Registry, NamesWhatThereIs) {
  EXPECT_EQ(what_of<ConfigError>([] { (void)row_of(kRows, "optimizer", "SDG"); }),
            "there is no optimizer SDG (did you mean sgd?), allowed: accum-adamw, sgd");
}

TEST(Text, ShowsWhatWouldCommandATerminal) {
  EXPECT_EQ(visible("a\tb\nc \u00e9 \u20ac \U0001f600"), "a\tb\nc \u00e9 \u20ac \U0001f600");
  EXPECT_EQ(visible("\x1b[2J\x7f\r\b"), "\\x1b[2J\\x7f\\x0d\\x08");
  EXPECT_EQ(visible_line("\x1b a\nb"), "\\x1b a\\x0ab");
  EXPECT_EQ(visible(std::string("a\0b", 3)), "a\\x00b");
  // The control characters of Latin-1, and what turns the direction of writing.
  EXPECT_EQ(visible("\u009b\u202e"), "\\xc2\\x9b\\xe2\\x80\\xae");
  // No UTF-8: Latin-1, cut off, too long, half of a pair, beyond the last character.
  EXPECT_EQ(visible("caf\xe9 \xc3"), "caf\\xe9 \\xc3");
  EXPECT_EQ(visible("\xc0\xaf"), "\\xc0\\xaf");
  EXPECT_EQ(visible("\xe0\x80\xaf"), "\\xe0\\x80\\xaf");
  EXPECT_EQ(visible("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(visible("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(WithDigits, AreThoseOfPrintf) {
  EXPECT_EQ(with_digits(1.25, 1), "1.2");
  EXPECT_EQ(with_digits(-0.0, 2), "-0.00");
  EXPECT_EQ(with_digits(1234.5, 3, std::chars_format::general), "1.23e+03");
  EXPECT_EQ(with_digits(0.00012, 2, std::chars_format::scientific), "1.20e-04");
  EXPECT_EQ(with_digits(1e300, 1).size(), 303);
}

TEST(ShellWord, LeavesPathsAndAddressesAsTheyAre) {
  EXPECT_EQ(shell_word("runs/quickstart-2"), "runs/quickstart-2");
  EXPECT_EQ(shell_word("[::1]:29500"), "[::1]:29500");
}

TEST(ShellWord, QuotesWhatAShellWouldRead) {
  EXPECT_EQ(shell_word("runs/a b"), "'runs/a b'");
  EXPECT_EQ(shell_word("$HOME"), "'$HOME'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(Markup, EscapesTheCharactersThatMeanSomething) {
  EXPECT_EQ(escaped("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
}

}  // namespace
}  // namespace gossamer

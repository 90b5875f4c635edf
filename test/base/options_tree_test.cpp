// Tests of sections, unknown keys, and the resolved configuration.

#include "test/base/thrown.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/options.hpp"
#include "base/yaml.hpp"

namespace gossamer::options_tree_test {
namespace {

Options read(std::string_view text) { return Options(parse_yaml(text, "f.yaml")); }

/// What is said of a key that nothing has read; empty: there is none.
std::string unknown_key_in(const Options& options) {
  return what_of<ConfigError>([&] { options.reject_unknown(); });
}

TEST(OptionsTree, RootMustBeAMapping) {
  EXPECT_EQ(what_of<ConfigError>([] { (void)read("[1]"); }),
            "f.yaml:1:1: the file holds a list, allowed: key: value lines");
  EXPECT_EQ(what_of<ConfigError>([] { (void)read("abc"); }),
            "f.yaml:1:1: the file holds text, allowed: key: value lines");
  EXPECT_EQ(unknown_key_in(read("")), "");
  EXPECT_EQ(unknown_key_in(Options()), "");
}

TEST(OptionsTree, SectionsMustBeMappings) {
  const Options root = read("a: 5\nb: [1]\nc:\n");
  EXPECT_EQ(what_of<ConfigError>([&] { (void)root.section("a"); }),
            "f.yaml:1:4: a: is text, allowed: a section of key: value lines");
  EXPECT_EQ(what_of<ConfigError>([&] { (void)root.section("b"); }),
            "f.yaml:2:4: b: is a list, allowed: a section of key: value lines");
  EXPECT_EQ(root.section("c").read(IntegerOption{.name = "x", .rule = {.fallback = 4}}), 4);
  EXPECT_EQ(root.section("d").read(IntegerOption{.name = "x", .rule = {.fallback = 4}}), 4);
}

TEST(OptionsTree, HasTellsWhatIsGiven) {
  const Options root = read("a: 5\nb:\nc: {}\n");
  EXPECT_TRUE(root.has("a"));
  EXPECT_FALSE(root.has("b"));
  EXPECT_TRUE(root.has("c"));
  EXPECT_FALSE(root.has("d"));
  EXPECT_FALSE(root.section("none").has("a"));
}

TEST(OptionsTree, RefusesUnknownKeysWithASuggestion) {
  const Options root = read("seed: 1\nepohcs: 3\n");
  (void)root.read(IntegerOption{.name = "seed"});
  (void)root.read(IntegerOption{.name = "epochs", .rule = {.fallback = 1}});
  EXPECT_EQ(unknown_key_in(root),
            "f.yaml:2:1: epohcs: unknown key (did you mean epochs?), allowed: seed, epochs");
}

TEST(OptionsTree, RefusesUnknownKeysOfNestedSections) {
  const Options root = read("a:\n  b:\n    known: 1\n    other: 2\n");
  const Options inner = root.section("a").section("b");
  (void)inner.read(IntegerOption{.name = "known"});
  EXPECT_EQ(unknown_key_in(root), "f.yaml:4:5: a.b.other: unknown key, allowed: known");
  (void)inner.read(IntegerOption{.name = "other"});
  EXPECT_EQ(unknown_key_in(root), "");
}

TEST(OptionsTree, RefusesSectionsThatNobodyTakes) {
  const Options root = read("seed: 1\nextra:\n  a: 1\n");
  (void)root.read(IntegerOption{.name = "seed"});
  EXPECT_EQ(unknown_key_in(root), "f.yaml:2:1: extra: unknown key, allowed: seed");
}

TEST(OptionsTree, ChecksASectionByItselfToo) {
  const Options root = read("mine:\n  x: 1\nother:\n  y: 2\n");
  const Options mine = root.section("mine");
  EXPECT_EQ(unknown_key_in(mine).rfind("f.yaml:2:3: mine.x: ", 0), 0U);
  (void)mine.read(IntegerOption{.name = "x"});
  EXPECT_EQ(unknown_key_in(mine), "");
}

TEST(OptionsTree, KeysTakenThroughAnyViewAreKnown) {
  const Options root = read("s: {a: 1, b: 2}\n");
  const Options one = root.section("s");
  const Options two = root.section("s");
  const Options copy = one;
  (void)copy.read(IntegerOption{.name = "a"});
  (void)two.read(IntegerOption{.name = "b"});
  EXPECT_EQ(unknown_key_in(root), "");
}

TEST(OptionsTree, OutlivesTheRoot) {
  std::optional<Options> section;
  {
    const Options root = read("s: {a: 1}\n");
    section = root.section("s");
  }
  EXPECT_EQ(section->read(IntegerOption{.name = "a"}), 1);
}

TEST(OptionsTree, FailNamesThePlaceOfTheKey) {
  const Options section = read("s:\n  a: 1\n").section("s");
  EXPECT_EQ(what_of<ConfigError>([&] { section.fail("a", "is odd"); }), "f.yaml:2:6: s.a: is odd");
  EXPECT_EQ(what_of<ConfigError>([&] { section.fail("b", "is odd"); }), "f.yaml:2:3: s.b: is odd");
}

TEST(OptionsTree, ParseTakesSectionsWrittenInCode) {
  EXPECT_EQ(Options::parse("accum_iter: 4").read(IntegerOption{.name = "accum_iter"}), 4);
  const Options two = Options::parse("{a: 1, b: {c: 2}}");
  EXPECT_EQ(two.section("b").read(IntegerOption{.name = "c"}), 2);
  EXPECT_FALSE(Options::parse("").has("a"));
  EXPECT_EQ(
      what_of<ConfigError>([] { (void)Options::parse("a: x").read(IntegerOption{.name = "a"}); }),
      "options:1:5: a: x is not an integer, allowed: an integer");
}

/// Reads one value of every kind.
void read_all(const Options& root) {
  (void)root.read(IntegerOption{.name = "i", .rule = {.fallback = -4}});
  (void)root.read(NumberOption{.name = "n", .rule = {.fallback = 0.1}});
  const Options section = root.section("s");
  (void)section.read(FlagOption{.name = "f", .rule = {.fallback = true}});
  (void)section.read(TextOption{.name = "t", .rule = {.fallback = "plain"}});
  const Options inner = section.section("inner");
  (void)inner.read(
      ChoiceOption{.name = "c", .rule = {.words = {"one-peer", "ring"}, .fallback = "ring"}});
  (void)inner.read(NumberPairOption{.name = "p", .rule = {.fallback = {0.9, 0.999}}});
  (void)section.read(RangeOption{.name = "r"});
  const Options last = root.section("z");
  (void)last.read(OptionalIntegerOption{.name = "oi"});
  (void)last.read(OptionalNumberOption{.name = "on"});
}

TEST(OptionsTree, RecordsEveryValueInTheOrderOfReading) {
  const Options root =
      read("n: 1e-3\ns: {r: [2, 5], inner: {c: One_Peer}, f: false}\nz: {oi: 3}\n");
  read_all(root);
  root.reject_unknown();
  EXPECT_EQ(to_yaml(root.resolved()),
            "i: -4\n"
            "n: 0.001\n"
            "s:\n"
            "  f: false\n"
            "  t: \"plain\"\n"
            "  inner:\n"
            "    c: one-peer\n"
            "    p: [0.9, 0.999]\n"
            "  r: [2, 5]\n"
            "z:\n"
            "  oi: 3\n"
            "  on: null\n");
}

TEST(OptionsTree, WritesASectionOnceWhereItsFirstValueStands) {
  EXPECT_EQ(to_yaml({{"log.level", "info"}, {"run.seed", "1"}, {"log.every", "10"}}),
            "log:\n  level: info\n  every: 10\nrun:\n  seed: 1\n");
}

TEST(OptionsTree, RecordsAValueOnce) {
  const Options root = read("a: 2\n");
  (void)root.read(IntegerOption{.name = "a"});
  (void)root.read(NumberOption{.name = "b", .rule = {.fallback = 1}});
  (void)root.read(NumberOption{.name = "a"});
  ASSERT_EQ(root.resolved().size(), 2U);
  EXPECT_EQ(root.resolved()[0].path, "a");
  EXPECT_EQ(root.resolved()[0].value, "2");
}

TEST(OptionsTree, ResolvedConfigurationReadsBackTheSame) {
  for (const char* text :
       {"", "i: 7\nn: -1.5e-300\ns: {t: \"a: [b\", r: [0, 1]}\nz: {oi: -1, on: 2.5}\n"}) {
    const Options first = read(text);
    read_all(first);
    const std::string yaml = to_yaml(first.resolved());
    const Options second = read(yaml);
    read_all(second);
    second.reject_unknown();
    EXPECT_EQ(to_yaml(second.resolved()), yaml);
  }
}

TEST(OptionsTree, AnyTextReadsBackTheSame) {
  for (const std::string& value :
       {std::string(""), std::string("null"), std::string("~"), std::string("5"),
        std::string("true"), std::string("- a"), std::string("a: b"), std::string("# c"),
        std::string("a\"b\\c"), std::string("two\nlines\n"), std::string("tab\there"),
        std::string("carriage\rreturn\r\n"), std::string("  spaces  "), std::string("bell\a\x1b"),
        std::string("zero\0byte", 9), std::string("caf\xC3\xA9"), std::string("\x7f"),
        std::string("C:\\new\\x41")}) {
    const Options defaults;
    (void)defaults.read(TextOption{.name = "t", .rule = {.fallback = value}});
    const std::string yaml = to_yaml(defaults.resolved());
    EXPECT_EQ(read(yaml).read(TextOption{.name = "t"}), value) << yaml;
  }
}

TEST(NamedSection, TakesANameForASection) {
  const Options root = read("a: ring\nb: {name: base-k, k: 2}\nd: [1]\n");
  EXPECT_EQ(root.named_section("a").read(TextOption{.name = "name"}), "ring");
  const Options b = root.named_section("b");
  EXPECT_EQ(b.read(TextOption{.name = "name"}), "base-k");
  EXPECT_EQ(b.read(IntegerOption{.name = "k"}), 2);
  EXPECT_FALSE(root.named_section("c").has("name"));
  EXPECT_EQ(what_of<ConfigError>([&] { (void)root.named_section("d"); }),
            "f.yaml:3:4: d: is a list, allowed: a name, or a section of key: value lines");
  EXPECT_EQ(what_of<ConfigError>(
                [&] { (void)root.named_section("a").read(IntegerOption{.name = "name"}); }),
            "f.yaml:1:4: a.name: ring is not an integer, allowed: an integer");
}

TEST(NamedSections, AreTheItemsOfAList) {
  const Options root = read("l: [ring, {name: torus, rows: 2, colour: 1}]\ne: []\nt: x\n");
  const std::vector<Options> items = root.named_sections("l");
  ASSERT_EQ(items.size(), 2U);
  EXPECT_EQ(items[0].read(TextOption{.name = "name"}), "ring");
  EXPECT_EQ(items[1].read(TextOption{.name = "name"}), "torus");
  EXPECT_EQ(items[1].read(IntegerOption{.name = "rows"}), 2);
  EXPECT_EQ(unknown_key_in(items[1]), "f.yaml:1:34: l[1].colour: unknown key, allowed: name, rows");
  const std::string allowed = "allowed: a list of names or sections, of one at least";
  EXPECT_EQ(what_of<ConfigError>([&] { (void)root.named_sections("e"); }),
            "f.yaml:2:4: e: is a list, " + allowed);
  EXPECT_EQ(what_of<ConfigError>([&] { (void)root.named_sections("t"); }),
            "f.yaml:3:4: t: is x, " + allowed);
  EXPECT_EQ(what_of<ConfigError>([&] { (void)root.named_sections("m"); }),
            "f.yaml:1:1: m: is missing, " + allowed);
}

TEST(NamedSections, AreWrittenAsAList) {
  const Options root = read("t: {l: [ring, {name: torus, rows: 2}], u: 5}\nz: 1\n");
  const Options t = root.section("t");
  for (const Options& item : t.named_sections("l")) {
    (void)item.read(TextOption{.name = "name"});
    (void)item.read(OptionalIntegerOption{.name = "rows"});
  }
  (void)t.read(IntegerOption{.name = "u"});
  (void)root.read(IntegerOption{.name = "z"});
  const std::string written = to_yaml(root.resolved());
  EXPECT_EQ(written,
            "t:\n  l:\n    -\n      name: \"ring\"\n      rows: null\n"
            "    -\n      name: \"torus\"\n      rows: 2\n  u: 5\nz: 1\n");
  const Options again = read(written);
  EXPECT_EQ(again.section("t").named_sections("l")[1].read(IntegerOption{.name = "rows"}), 2);
}

TEST(AcceptUnknown, LetsASectionPass) {
  const Options root = read("a: {x: 1}\nb: {y: 2}\n");
  root.section("a").accept_unknown();
  (void)root.section("b");
  EXPECT_EQ(unknown_key_in(root), "f.yaml:2:5: b.y: unknown key, allowed: ");
}

}  // namespace
}  // namespace gossamer::options_tree_test

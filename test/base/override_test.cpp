#include "test/base/thrown.hpp"

#include <string>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/options.hpp"
#include "base/yaml.hpp"

namespace gossamer::override_test {
namespace {

constexpr std::string_view kFile = "run:\n  seed: 7\n  name: x\ntop: 1\nlist: [1, 2]\n";

Options with(std::initializer_list<std::string_view> overrides) {
  YamlNode root = parse_yaml(kFile, "f.yaml");
  for (const std::string_view assignment : overrides) apply_override(root, assignment);
  return Options(std::move(root));
}

std::string error_of(std::string_view assignment) {
  YamlNode root = parse_yaml(kFile, "f.yaml");
  return what_of<ConfigError>([&] { apply_override(root, assignment); });
}

TEST(Override, ReplacesOneValueAndLeavesTheRest) {
  const Options root = with({"run.seed=8", "top=-2"});
  EXPECT_EQ(root.section("run").read(IntegerOption{.name = "seed"}), 8);
  EXPECT_EQ(root.section("run").read(TextOption{.name = "name"}), "x");
  EXPECT_EQ(root.read(IntegerOption{.name = "top"}), -2);
}

TEST(Override, LastOneWins) {
  EXPECT_EQ(with({"run.seed=8", "run.seed=9"}).section("run").read(IntegerOption{.name = "seed"}),
            9);
}

TEST(Override, TypesValuesAsInAFile) {
  const Options root =
      with({"a=[1.5, 2]", "b={c: 3}", "d='4'", "e=true", "f=x=y", "run=null", "g="});
  EXPECT_EQ(root.read(NumberPairOption{.name = "a", .rule = {.fallback = {0, 0}}}),
            std::pair(1.5, 2.0));
  EXPECT_EQ(root.section("b").read(IntegerOption{.name = "c"}), 3);
  EXPECT_NE(what_of<ConfigError>([&] { (void)root.read(IntegerOption{.name = "d"}); }), "");
  EXPECT_TRUE(root.read(FlagOption{.name = "e"}));
  EXPECT_EQ(root.read(TextOption{.name = "f"}), "x=y");
  EXPECT_FALSE(root.has("run"));
  EXPECT_FALSE(root.has("g"));
}

TEST(Override, MakesTheSectionsItNeeds) {
  YamlNode empty = parse_yaml("", "f.yaml");
  apply_override(empty, "a.b.c=5");
  EXPECT_EQ(Options(std::move(empty)).section("a").section("b").read(IntegerOption{.name = "c"}),
            5);
}

TEST(Override, IsThePlaceThatErrorsName) {
  const Options root = with({"run.seed=many", "run.sede=1"});
  const Options run = root.section("run");
  EXPECT_EQ(what_of<ConfigError>([&] { (void)run.read(IntegerOption{.name = "seed"}); }),
            "command line: run.seed: many is not an integer, allowed: an integer");
  (void)run.read(TextOption{.name = "seed"});
  (void)run.read(TextOption{.name = "name"});
  (void)root.read(IntegerOption{.name = "top"});
  (void)root.has("list");
  EXPECT_EQ(what_of<ConfigError>([&] { run.reject_unknown(); }),
            "command line: run.sede: unknown key (did you mean seed?), allowed: seed, name");
}

TEST(Override, RefusesWhatIsNotAnAssignment) {
  EXPECT_EQ(error_of("run.seed"),
            "command line: run.seed: not an override, allowed: key.sub=value");
  EXPECT_EQ(error_of("=5"), "command line: =5: not an override, allowed: key.sub=value");
  EXPECT_EQ(error_of(""), "command line: not an override, allowed: key.sub=value");
}

TEST(Override, RefusesEmptyPartsOfAKey) {
  for (const char* path : {".seed", "run.", "run..seed", "."}) {
    EXPECT_EQ(error_of(std::string(path) + "=1"),
              std::string("command line: ") + path + ": a part of the key is empty");
  }
}

TEST(Override, AddsOptionsToALoneName) {
  YamlNode root = parse_yaml("algorithm: allreduce\n", "f.yaml");
  apply_override(root, "algorithm.delay=1");
  const Options section = Options(std::move(root)).named_section("algorithm");
  EXPECT_EQ(section.read(TextOption{.name = "name"}), "allreduce");
  EXPECT_EQ(section.read(IntegerOption{.name = "delay"}), 1);
}

TEST(Override, RefusesSubKeysOfValues) {
  const Options root = with({"top.sub=1"});
  EXPECT_EQ(what_of<ConfigError>([&] { (void)root.read(IntegerOption{.name = "top"}); }),
            "command line: top: is a mapping, allowed: an integer");
  EXPECT_EQ(error_of("list.0=1"), "command line: list.0: has no sub-keys: it is set at f.yaml:5:7");
}

TEST(Override, RefusesComments) {
  for (const char* value : {"#1", "runs/a #1", "[1] # one", "\"a\" #1"}) {
    const std::string error = error_of(std::string("run.name=") + value);
    EXPECT_CONTAINS(error, "run.name: # begins a comment") << value << " gives " << error;
  }
  for (const auto& [value, text] : {std::pair{"runs/a#1", "runs/a#1"},
                                    {"\"runs/a #1\"", "runs/a #1"},
                                    {"'#1'", "#1"},
                                    {"\"say \\\" #1\"", "say \" #1"}}) {
    const Options root = with({std::string("run.name=") + value});
    EXPECT_EQ(root.section("run").read(TextOption{.name = "name"}), text);
  }
}

TEST(Override, RefusesBrokenYaml) {
  for (const char* value : {"[1", "'x", "&a 1", "*a", "!!int 1", "{a: 1, a: 2}"}) {
    const std::string error = error_of(std::string("run.seed=") + value);
    EXPECT_EQ(error.rfind("command line: run.seed: command line:1:", 0), 0U)
        << value << " gives " << error;
  }
}

}  // namespace
}  // namespace gossamer::override_test

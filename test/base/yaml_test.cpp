#include "base/yaml.hpp"

#include "test/base/folder.hpp"
#include "test/base/thrown.hpp"

#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace gossamer::yaml_test {
namespace {

using Kind = YamlNode::Kind;

YamlNode parse(std::string_view text) { return parse_yaml(text, "f.yaml"); }

std::string error_of(std::string_view text) {
  return what_of<ConfigError>([&] { parse(text); });
}

/// The node at a dotted path. The test fails if there is no such node.
const YamlNode& at(const YamlNode& root, std::string_view path) {
  const YamlNode* node = &root;
  while (!path.empty()) {
    const auto dot = path.find('.');
    node = node->find(path.substr(0, dot));
    if (node == nullptr) throw std::runtime_error("no such key");
    path = dot == std::string_view::npos ? "" : path.substr(dot + 1);
  }
  return *node;
}

TEST(Yaml, KeepsKindsTextsAndOrder) {
  const YamlNode root = parse("z: 1\na: {x: [1, two, '3']}\nnothing:\n");
  ASSERT_EQ(root.kind, Kind::kMapping);
  ASSERT_EQ(root.entries.size(), 3U);
  EXPECT_EQ(root.entries[0].first.name, "z");
  EXPECT_EQ(root.entries[1].first.name, "a");
  EXPECT_EQ(root.entries[2].first.name, "nothing");
  EXPECT_EQ(at(root, "z").scalar, "1");
  EXPECT_EQ(at(root, "nothing").kind, Kind::kNull);
  const YamlNode& list = at(root, "a.x");
  ASSERT_EQ(list.kind, Kind::kSequence);
  ASSERT_EQ(list.items.size(), 3U);
  EXPECT_EQ(list.items[1].scalar, "two");
  EXPECT_FALSE(list.items[0].quoted);
  EXPECT_EQ(list.items[2].scalar, "3");
  EXPECT_TRUE(list.items[2].quoted);
  EXPECT_EQ(root.find("missing"), nullptr);
}

TEST(Yaml, NamesThePlaceOfEveryNode) {
  const YamlNode root = parse("a: 1\nb:\n  c: [x, y]\n  d: {e: 5}\n\n# a comment\n\"f\": \"g\"\n");
  EXPECT_EQ(root.where, "f.yaml:1:1");
  EXPECT_EQ(at(root, "a").where, "f.yaml:1:4");
  EXPECT_EQ(root.entries[1].first.where, "f.yaml:2:1");
  EXPECT_EQ(at(root, "b").where, "f.yaml:3:3");
  EXPECT_EQ(at(root, "b.c").where, "f.yaml:3:6");
  EXPECT_EQ(at(root, "b.c").items[0].where, "f.yaml:3:7");
  EXPECT_EQ(at(root, "b.c").items[1].where, "f.yaml:3:10");
  EXPECT_EQ(at(root, "b.d").entries[0].first.where, "f.yaml:4:7");
  EXPECT_EQ(at(root, "b.d.e").where, "f.yaml:4:10");
  EXPECT_EQ(root.entries[2].first.where, "f.yaml:7:1");
  EXPECT_EQ(at(root, "f").where, "f.yaml:7:6");
}

TEST(Yaml, TakesOnlyUnquotedNullWordsForNothing) {
  for (const char* word : {"", "~", "null", "Null", "NULL"}) {
    EXPECT_EQ(at(parse(std::string("a: ") + word), "a").kind, Kind::kNull) << word;
    EXPECT_EQ(at(parse(std::string("a: '") + word + "'"), "a").kind, Kind::kScalar) << word;
  }
  EXPECT_EQ(at(parse("a: nULL"), "a").kind, Kind::kScalar);
}

TEST(Yaml, TakesEmptyTextForNothing) {
  for (const char* text : {"", "\n\n", "# only a comment\n", "---\n"}) {
    EXPECT_EQ(parse(text).kind, Kind::kNull) << text;
  }
  EXPECT_EQ(parse("").where, "f.yaml:1:1");
}

TEST(Yaml, RefusesDuplicateKeys) {
  EXPECT_EQ(error_of("a: 1\nb: 2\na: 3\n"),
            "f.yaml:3:1: a: duplicate key, its first value stands at f.yaml:1:4");
  EXPECT_EQ(error_of("s: {b: 2, b: 2}"),
            "f.yaml:1:11: b: duplicate key, its first value stands at f.yaml:1:8");
  EXPECT_NE(error_of("a: 1\n'a': 2\n"), "");
  EXPECT_EQ(error_of("s: {a: 1}\nt: {a: 1}\n"), "");
}

TEST(Yaml, RefusesAnchorsAliasesAndTags) {
  EXPECT_EQ(error_of("a: &x 1\n"), "f.yaml:1:4: anchors (&name) are not allowed");
  EXPECT_EQ(error_of("a: &x [1]\n"), "f.yaml:1:4: anchors (&name) are not allowed");
  EXPECT_EQ(error_of("a: &x {b: 1}\n"), "f.yaml:1:4: anchors (&name) are not allowed");
  EXPECT_EQ(error_of("a: &x\nb: 1\n"), "f.yaml:1:4: anchors (&name) are not allowed");
  EXPECT_NE(error_of("&x a: 1\n"), "");
  EXPECT_NE(error_of("a: *x\n"), "");
  EXPECT_NE(error_of("a: &x {b: 1}\nc:\n  <<: *x\n"), "");
  EXPECT_EQ(error_of("a: !!int 5\n"), "f.yaml:1:4: tags (tag:yaml.org,2002:int) are not allowed");
  EXPECT_NE(error_of("a: !mine [1]\n"), "");
  EXPECT_NE(error_of("a: !mine {b: 1}\n"), "");
}

TEST(Yaml, RefusesKeysThatAreNotText) {
  EXPECT_NE(error_of("[a, b]: 1\n"), "");
  EXPECT_NE(error_of("{a: 1}: 1\n"), "");
  EXPECT_EQ(error_of("? \n: 1\n"), "f.yaml:2:1: a key must be plain text");
}

TEST(Yaml, BoundsTheDepth) {
  const auto lists = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(error_of(lists(64)), "");
  EXPECT_EQ(error_of(lists(65)), "f.yaml:1:65: nested deeper than 64 levels");
  EXPECT_NE(error_of(std::string(100'000, '[')), "");
  std::string maps;
  for (int depth = 0; depth < 70; ++depth) maps += "{a: ";
  EXPECT_NE(error_of(maps + "1" + std::string(70, '}')), "");
  std::string block;
  for (std::size_t depth = 0; depth < 64; ++depth) block += std::string(depth, ' ') + "a:\n";
  EXPECT_EQ(error_of(block), "");
  EXPECT_EQ(error_of(block + std::string(64, ' ') + "a: 1\n"),
            "f.yaml:65:65: nested deeper than 64 levels");
}

TEST(Yaml, RefusesASecondDocument) {
  EXPECT_EQ(error_of("a: 1\n---\nb: 2\n"), "f.yaml:3:1: a second document (---) is not allowed");
  EXPECT_NE(error_of("a: 1\n---\n"), "");
  EXPECT_EQ(error_of("---\na: 1\n"), "");
  EXPECT_EQ(error_of("a: 1\n...\n"), "");
}

TEST(Yaml, NamesThePlaceOfBrokenSyntax) {
  for (const char* text : {"a: [1, 2\n", "a: 'x\n", "a: 1\n b: 2\n", "a: b: c\n", "a: }\n",
                           "\ta: 1\n", "a: \"\\q\"\n"}) {
    const std::string error = error_of(text);
    EXPECT_EQ(error.rfind("f.yaml:", 0), 0U) << text << " gives " << error;
    EXPECT_CONTAINS(error, "not valid YAML: ") << text << " gives " << error;
  }
  EXPECT_EQ(error_of("ok: 1\na: b: c\n").rfind("f.yaml:2:5: ", 0), 0U);
}

TEST(Yaml, RefusesAQuoteThatNeverEnds) {
  for (const char* text :
       {"a: 'x\nb: 2\n", "a: \"x\nb: 2\n", "a: 'x\r\nb: 2\r\n\r\n", "- 'x\n- y\n"}) {
    EXPECT_CONTAINS(error_of(text), "illegal EOF in scalar") << text;
  }
}

TEST(Yaml, ReadsFiles) {
  const Folder folder;
  const std::string path = folder.file("a.yaml");
  std::ofstream(path, std::ios::binary) << "a: 1\r\nb: [1,\r\n";
  const std::string broken = what_of<ConfigError>([&] { read_yaml_file(path); });
  EXPECT_EQ(broken.rfind(path + ":", 0), 0U) << broken;
  std::ofstream(path, std::ios::binary) << "\xEF\xBB\xBF"
                                           "a: 1\r\nb: x\r\n";
  const YamlNode root = read_yaml_file(path);
  EXPECT_EQ(at(root, "b").scalar, "x");
  EXPECT_EQ(at(root, "b").where, path + ":2:4");
}

TEST(Yaml, NamesTheFileThatCannotBeRead) {
  const auto what = [](const std::string& path) {
    return what_of<ConfigError>([&] { read_yaml_file(path); });
  };
  EXPECT_EQ(what("/nonexistent/a.yaml"),
            "/nonexistent/a.yaml:1:1: the file does not exist, allowed: the path of a YAML file");
  EXPECT_EQ(what(testing::TempDir()),
            testing::TempDir() + ":1:1: the file is a folder, allowed: the path of a YAML file");
}

}  // namespace
}  // namespace gossamer::yaml_test

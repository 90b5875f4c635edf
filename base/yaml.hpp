#pragma once
// Parses configuration text into a tree of nodes that know their place in the file. The parser uses
// yaml-cpp's events instead of yaml-cpp's own node type. That type accepts duplicate keys, and also
// aliases, with which a file of a few hundred bytes can fill the memory. Options interprets the
// values; this parser does not.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gossamer {

/// One node of a YAML tree. A sequence has `items`, and a mapping has `entries` in the order of the
/// file.
struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMapping };
  struct Key {
    std::string name;
    std::string where;
  };

  Kind kind = Kind::kNull;
  /// `file:line:column`, or `command line`.
  std::string where;
  /// The text of a scalar; a quoted scalar is text, never a number.
  std::string scalar = {};
  bool quoted = false;
  std::vector<YamlNode> items = {};
  std::vector<std::pair<Key, YamlNode>> entries = {};

  /// The value of `key` in a mapping, or nullptr.
  [[nodiscard]] const YamlNode* find(std::string_view key) const;
  [[nodiscard]] YamlNode* find(std::string_view key);
};

/// Parses one document; empty text is a null node. `source` stands before line and column.
/// Throws ConfigError for broken YAML, duplicate keys, anchors, aliases, tags, nesting deeper than
/// 64 levels and a second document.
YamlNode parse_yaml(std::string_view text, const std::string& source);

/// A text as a scalar in double quotes, which reads back as the same bytes, also where they are no
/// UTF-8.
std::string quoted_text(std::string_view text);

/// Parses a file as parse_yaml() does. Throws ConfigError also when the file cannot be read.
YamlNode read_yaml_file(const std::string& path);

/// Throws ConfigError for the first key of a mapping that is not among `known`. The message shows
/// `prefix` before the key.
void reject_unknown_keys(const YamlNode& mapping, std::string_view prefix,
                         const std::vector<std::string>& known);

/// The mapping {name: NAME} that a lone `NAME` stands for.
YamlNode named_mapping(YamlNode name);

/// Sets `key.sub=value` in a tree; the value is YAML with the same types as in a file. If the tree
/// has `key: NAME`, this becomes `key: {name: NAME, sub: value}`. Throws ConfigError.
void apply_override(YamlNode& root, std::string_view assignment);

}  // namespace gossamer

#pragma once
// Configuration text as a plain tree in which every node knows where it stands. The tree is built
// from yaml-cpp's parser events, because its own node type accepts duplicate keys and aliases
// (a file of a few hundred bytes of aliases can fill the memory). Values are not interpreted here:
// that is Options' work.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gossamer {

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

  /// The value of a mapping's key, or nullptr.
  [[nodiscard]] const YamlNode* find(std::string_view key) const;
  [[nodiscard]] YamlNode* find(std::string_view key);
};

/// Parses one document; empty text is a null node. `source` stands before line and column.
/// Throws ConfigError for broken YAML, duplicate keys, anchors, aliases, tags, nesting deeper than
/// 64 levels and a second document.
YamlNode parse_yaml(std::string_view text, const std::string& source);

/// Throws ConfigError when the file cannot be read; otherwise as parse_yaml.
YamlNode read_yaml_file(const std::string& path);

/// Throws ConfigError for the first key of a mapping that is not among `known`; `prefix` stands
/// before its name.
void reject_unknown_keys(const YamlNode& mapping, std::string_view prefix,
                         const std::vector<std::string>& known);

/// Sets `key.sub=value` in a tree; the value is YAML, typed as in a file. Throws ConfigError.
void apply_override(YamlNode& root, std::string_view assignment);

}  // namespace gossamer

#include "base/yaml.hpp"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "base/whole_text.hpp"

namespace gossamer {
namespace {

constexpr std::size_t kMaxDepth = 64;

bool is_null_word(std::string_view text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const std::string& source, YamlNode& root) : source_(source), root_(root) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    place({YamlNode::Kind::kNull, where(mark)});
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw ConfigError(where(mark), "", "aliases (*name) are not allowed, write the value out");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    const bool quoted = tag == "!";
    if (expects_key()) return begin_entry(mark, value);
    if (!quoted && is_null_word(value)) {
      place({YamlNode::Kind::kNull, where(mark)});
      return;
    }
    place({YamlNode::Kind::kScalar, where(mark), value, quoted});
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kSequence);
  }
  void OnSequenceEnd() override { open_.pop_back(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kMapping);
  }
  void OnMapEnd() override { open_.pop_back(); }

 private:
  struct Level {
    YamlNode* node;
    bool has_key = false;
  };

  [[nodiscard]] std::string where(const YAML::Mark& mark) const {
    return concat(source_, ":", mark.line + 1, ":", mark.column + 1);
  }

  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != 0) throw ConfigError(where(mark), "", "anchors (&name) are not allowed");
  }
  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw ConfigError(where(mark), "", concat("tags (", tag, ") are not allowed"));
    }
  }

  [[nodiscard]] bool expects_key() const {
    return !open_.empty() && open_.back().node->kind == YamlNode::Kind::kMapping &&
           !open_.back().has_key;
  }

  void begin_entry(const YAML::Mark& mark, const std::string& key) {
    Level& level = open_.back();
    if (const YamlNode* earlier = level.node->find(key)) {
      throw ConfigError(where(mark), key,
                        concat("duplicate key, its first value stands at ", earlier->where));
    }
    level.node->entries.push_back({{key, where(mark)}, {}});
    level.has_key = true;
  }

  /// Puts a finished or just opened node at the parser's place in the tree, and returns its new
  /// address.
  YamlNode& place(YamlNode node) {
    if (open_.empty()) return root_ = std::move(node);
    Level& level = open_.back();
    if (level.node->kind == YamlNode::Kind::kSequence) {
      return level.node->items.emplace_back(std::move(node));
    }
    if (!level.has_key) throw ConfigError(node.where, "", "a key must be plain text");
    level.has_key = false;
    return level.node->entries.back().second = std::move(node);
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            YamlNode::Kind kind) {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    if (open_.size() >= kMaxDepth) {
      throw ConfigError(where(mark), "", concat("nested deeper than ", kMaxDepth, " levels"));
    }
    open_.push_back({&place({kind, where(mark)})});
  }

  const std::string& source_;
  YamlNode& root_;
  std::vector<Level> open_;
};

/// Whether a # that no quotes enclose begins a comment.
bool holds_comment(std::string_view value) {
  char quote = '\0';
  char last = ' ';
  for (std::size_t i = 0; i < value.size(); last = value[i++]) {
    const char c = value[i];
    const bool begins_word = std::string_view(" \t\n,[{").find(last) != std::string_view::npos;
    if (quote != '\0') {
      if (c == '\\' && quote == '"') {
        ++i;
      } else if (c == quote) {
        quote = '\0';
      }
    } else if (c == '#' && begins_word) {
      return true;
    } else if (begins_word && (c == '"' || c == '\'')) {
      quote = c;
    }
  }
  return false;
}

}  // namespace

const YamlNode* YamlNode::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name.name == key) return &value;
  }
  return nullptr;
}

YamlNode* YamlNode::find(std::string_view key) {
  return const_cast<YamlNode*>(std::as_const(*this).find(key));
}

std::string quoted_text(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n') {
      quoted += "\\n";
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

YamlNode parse_yaml(std::string_view text, const std::string& source) {
  YamlNode root{YamlNode::Kind::kNull, concat(source, ":1:1")};
  // Cut the last line break off. yaml-cpp takes the end of the text for a missing closing quote if
  // a line break precedes it, and a quoted scalar would then silently swallow the rest of the file.
  std::istringstream stream{std::string(text.substr(0, text.find_last_not_of(" \t\r\n") + 1))};
  try {
    YAML::Parser parser(stream);
    TreeBuilder builder(source, root);
    if (!parser.HandleNextDocument(builder)) return root;
    YamlNode second;
    TreeBuilder rest(source, second);
    if (parser.HandleNextDocument(rest)) {
      throw ConfigError(second.where, "", "a second document (---) is not allowed");
    }
  } catch (const YAML::Exception& error) {
    throw ConfigError(concat(source, ":", error.mark.line + 1, ":", error.mark.column + 1), "",
                      concat("not valid YAML: ", error.msg));
  }
  return root;
}

YamlNode read_yaml_file(const std::string& path) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const auto text = is_folder ? std::nullopt : whole_text(path);
  if (!text) {
    const bool exists = std::filesystem::exists(path, ignored);
    const std::string_view what = is_folder ? "is a folder"
                                  : exists  ? "cannot be read"
                                            : "does not exist";
    throw ConfigError(concat(path, ":1:1"), "",
                      concat("the file ", what, ", allowed: the path of a YAML file"));
  }
  return parse_yaml(*text, path);
}

YamlNode named_mapping(YamlNode name) {
  YamlNode mapping{.kind = YamlNode::Kind::kMapping, .where = name.where};
  mapping.entries.emplace_back(YamlNode::Key{"name", name.where}, std::move(name));
  return mapping;
}

void apply_override(YamlNode& root, std::string_view assignment) {
  const std::string source = "command line";
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw ConfigError(source, assignment, "not an override, allowed: key.sub=value");
  }
  const std::string path(assignment.substr(0, equals));
  if (holds_comment(assignment.substr(equals + 1))) {
    throw ConfigError(
        source, path,
        "# begins a comment, and what follows would be lost; put the value in quotes, "
        "as 'key=\"a #1\"'");
  }
  YamlNode value;
  try {
    value = parse_yaml(assignment.substr(equals + 1), source);
  } catch (const ConfigError& error) {
    throw ConfigError(source, path, error.what());
  }
  YamlNode* node = &root;
  std::istringstream parts(path);
  for (std::string part; std::getline(parts, part, '.');) {
    if (part.empty()) throw ConfigError(source, path, "a part of the key is empty");
    if (node->kind == YamlNode::Kind::kNull) node->kind = YamlNode::Kind::kMapping;
    if (node->kind == YamlNode::Kind::kScalar) {
      *node = named_mapping(std::move(*node));
      // Errors about the kind of the new mapping are errors of this override.
      node->where = source;
    }
    if (node->kind != YamlNode::Kind::kMapping) {
      throw ConfigError(source, path, concat("has no sub-keys: it is set at ", node->where));
    }
    if (node->find(part) == nullptr) node->entries.push_back({{part, source}, {}});
    node = node->find(part);
  }
  if (path.back() == '.') throw ConfigError(source, path, "a part of the key is empty");
  *node = std::move(value);
  node->where = source;
}

void reject_unknown_keys(const YamlNode& mapping, std::string_view prefix,
                         const std::vector<std::string>& known) {
  for (const auto& [key, value] : mapping.entries) {
    if (std::ranges::find(known, key.name) != known.end()) continue;
    throw ConfigError(
        key.where, concat(prefix, key.name),
        concat("unknown key", did_you_mean(key.name, known), ", allowed: ", join(known, ", ")));
  }
}

}  // namespace gossamer

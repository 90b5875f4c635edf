#include "base/options.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <sstream>

#include "base/error.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"

namespace gossamer {
namespace {

/// Like parse_whole(), but allows a plus sign.
template <class T>
bool parse_signed(std::string_view text, T& value) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  return parse_whole(text, value);
}

std::string spelled(double value) { return shortest(value); }
std::string spelled(std::int64_t value) { return std::to_string(value); }

bool within(double value, const NumberRule& rule) {
  const bool low = rule.above_min ? value > rule.min : value >= rule.min;
  const bool high = rule.below_max ? value < rule.max : value <= rule.max;
  return low && high;
}

std::string_view kind_name(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      return node.quoted ? "quoted text" : "text";
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMapping:
      return "a mapping";
  }
  return "something else";
}

std::string shown(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kScalar) return std::string(kind_name(node));
  return node.quoted ? quoted_text(node.scalar) : node.scalar;
}

}  // namespace

struct Options::Shared {
  YamlNode root;
  /// Mappings that as_named() has made from scalars. A deque, so that their addresses never change.
  std::deque<YamlNode> made;
  std::vector<ResolvedValue> resolved;
};

struct Options::Level {
  const YamlNode* node = nullptr;  // null when the section is not in the file
  const YamlNode* inherited = nullptr;
  std::string prefix;
  std::string where;
  std::vector<std::string> known;
  bool accepts_unknown = false;
  std::vector<std::pair<std::string, std::shared_ptr<Level>>> children;

  void know(std::string_view key) {
    if (std::ranges::find(known, key) == known.end()) known.emplace_back(key);
  }

  void reject_unknown() const {
    if (node == nullptr || accepts_unknown) return;
    reject_unknown_keys(*node, prefix, known);
    for (const auto& [key, child] : children) child->reject_unknown();
  }
};

Options::Options() : Options(YamlNode{.where = "defaults"}) {}

Options::Options(YamlNode root)
    : shared_(std::make_shared<Shared>()), level_(std::make_shared<Level>()) {
  shared_->root = std::move(root);
  const YamlNode& node = shared_->root;
  level_->where = node.where;
  if (node.kind == YamlNode::Kind::kNull) return;
  if (node.kind != YamlNode::Kind::kMapping) {
    throw ConfigError(node.where, "",
                      concat("the file holds ", kind_name(node), ", allowed: key: value lines"));
  }
  level_->node = &node;
}

Options::Options(std::shared_ptr<Shared> shared, std::shared_ptr<Level> level)
    : shared_(std::move(shared)), level_(std::move(level)) {}

Options Options::parse(std::string_view yaml) {
  const bool flow = yaml.empty() || yaml.front() == '{';
  return Options(parse_yaml(flow ? std::string(yaml) : concat("{", yaml, "}"), "options"));
}

std::string Options::path(std::string_view key) const { return level_->prefix + std::string(key); }

const YamlNode* Options::look_up(std::string_view key) const {
  level_->know(key);
  for (const YamlNode* level : {level_->node, level_->inherited}) {
    const YamlNode* node = level == nullptr ? nullptr : level->find(key);
    if (node != nullptr && node->kind != YamlNode::Kind::kNull) return node;
  }
  return nullptr;
}

void Options::allow(std::string_view key) const { level_->know(key); }

void Options::inherit(const Options& base) const { level_->inherited = base.level_->node; }

bool Options::has(std::string_view key) const {
  if (level_->node == nullptr) return false;
  const YamlNode* node = level_->node->find(key);
  return node != nullptr && node->kind != YamlNode::Kind::kNull;
}

void Options::fail(std::string_view key, std::string_view what) const {
  const YamlNode* node = level_->node == nullptr ? nullptr : level_->node->find(key);
  throw ConfigError(node == nullptr ? level_->where : node->where, path(key), what);
}

const YamlNode& Options::need_scalar(std::string_view key, const YamlNode& node,
                                     std::string_view allowed) const {
  if (node.kind == YamlNode::Kind::kScalar) return node;
  throw ConfigError(node.where, path(key), concat("is ", kind_name(node), ", allowed: ", allowed));
}

const YamlNode& Options::need_list(std::string_view key, const YamlNode& node,
                                   std::string_view allowed) const {
  if (node.kind == YamlNode::Kind::kSequence && !node.items.empty()) return node;
  throw ConfigError(node.where, path(key), concat("is ", shown(node), ", allowed: ", allowed));
}

const YamlNode& Options::need_pair(std::string_view key, const YamlNode& node,
                                   std::string_view allowed) const {
  if (node.kind == YamlNode::Kind::kSequence && node.items.size() == 2) return node;
  throw ConfigError(node.where, path(key), concat("is ", shown(node), ", allowed: ", allowed));
}

std::int64_t Options::number_in(std::string_view key, const YamlNode& node, const IntegerRule& rule,
                                const std::string& allowed) const {
  std::int64_t value = 0;
  if (need_scalar(key, node, allowed).quoted || !parse_signed(node.scalar, value)) {
    throw ConfigError(node.where, path(key),
                      concat(shown(node), " is not an integer, allowed: ", allowed));
  }
  if (value < rule.min || value > rule.max) {
    throw ConfigError(node.where, path(key), concat(value, " is out of range, allowed: ", allowed));
  }
  return value;
}

double Options::number_in(std::string_view key, const YamlNode& node, const NumberRule& rule,
                          const std::string& allowed) const {
  const std::string& text = need_scalar(key, node, allowed).scalar;
  if (!node.quoted && (text == ".inf" || text == "-.inf" || text == ".nan")) {
    throw ConfigError(node.where, path(key), concat(text, " is not finite, allowed: ", allowed));
  }
  double value = 0;
  if (node.quoted || !parse_signed(text, value)) {
    throw ConfigError(node.where, path(key),
                      concat(shown(node), " is not a number, allowed: ", allowed));
  }
  if (!std::isfinite(value)) {
    throw ConfigError(node.where, path(key), concat(text, " is not finite, allowed: ", allowed));
  }
  if (!within(value, rule)) {
    throw ConfigError(node.where, path(key), concat(text, " is out of range, allowed: ", allowed));
  }
  return value;
}

void Options::record(std::string_view key, std::string value) const {
  const std::string full = path(key);
  auto& resolved = shared_->resolved;
  const auto earlier = std::ranges::find(resolved, full, &ResolvedValue::path);
  if (earlier != resolved.end()) {
    earlier->value = std::move(value);
    return;
  }
  resolved.push_back({full, std::move(value)});
}

template <class Value, class Rule>
Value Options::number(std::string_view key, const Rule& rule, const std::string& allowed) const {
  const YamlNode* node = look_up(key);
  if (node == nullptr && !rule.fallback) fail(key, concat("is missing, allowed: ", allowed));
  const Value value = node == nullptr ? *rule.fallback : number_in(key, *node, rule, allowed);
  record(key, spelled(value));
  return value;
}

std::int64_t Options::read(const IntegerOption& option) const {
  return number<std::int64_t>(option.name, option.rule, describe(option.rule));
}

double Options::read(const NumberOption& option) const {
  return number<double>(option.name, option.rule, describe(option.rule));
}

double Options::read(const NumberOption& option, double fallback) const {
  NumberOption other = option;
  other.rule.fallback = fallback;
  return read(other);
}

template <class Value, class Rule>
std::optional<Value> Options::number_or_null(const TypedOption<NullOr<Rule>>& option) const {
  if (look_up(option.name) != nullptr) {
    return number<Value>(option.name, option.rule.rule, describe(option.rule));
  }
  record(option.name, "null");
  return std::nullopt;
}

std::optional<std::int64_t> Options::read(const OptionalIntegerOption& option) const {
  return number_or_null<std::int64_t>(option);
}

std::optional<double> Options::read(const OptionalNumberOption& option) const {
  return number_or_null<double>(option);
}

template <class Value, class Rule>
std::optional<Value> Options::number_or_word(const TypedOption<WordOr<Rule>>& option) const {
  const std::string_view word = option.rule.word;
  const YamlNode* node = look_up(option.name);
  const bool is_word = node != nullptr && node->kind == YamlNode::Kind::kScalar &&
                       canonical_name(node->scalar) == word;
  if (!is_word && (node != nullptr || option.rule.rule.fallback)) {
    return number<Value>(option.name, option.rule.rule, describe(option.rule));
  }
  record(option.name, std::string(word));
  return std::nullopt;
}

std::optional<std::int64_t> Options::read(const IntegerOrWordOption& option) const {
  return number_or_word<std::int64_t>(option);
}

std::optional<double> Options::read(const NumberOrWordOption& option) const {
  return number_or_word<double>(option);
}

bool Options::read(const FlagOption& option) const {
  const YamlNode* node = look_up(option.name);
  bool value = option.rule.fallback;
  if (node != nullptr) {
    const std::string allowed = describe(option.rule);
    const std::string& text = need_scalar(option.name, *node, allowed).scalar;
    if (node->quoted || (text != "true" && text != "false")) {
      throw ConfigError(node->where, path(option.name),
                        concat(shown(*node), " is not a flag, allowed: ", allowed));
    }
    value = text == "true";
  }
  record(option.name, value ? "true" : "false");
  return value;
}

std::string Options::text(std::string_view key, std::optional<std::string_view> fallback) const {
  const YamlNode* node = look_up(key);
  if (node == nullptr && !fallback) fail(key, "is missing, allowed: text");
  std::string value(node == nullptr ? *fallback : need_scalar(key, *node, "text").scalar);
  record(key, quoted_text(value));
  return value;
}

std::string Options::read(const TextOption& option) const {
  return text(option.name, option.rule.fallback);
}

std::string Options::read(const PathOption& option) const {
  const std::string value = text(option.name, option.rule.fallback);
  if (!value.starts_with('~')) return value;
  if (value != "~" && !value.starts_with("~/")) {
    fail(option.name,
         concat(value, " begins with ~, allowed: ~/ for your home folder, or ./", value));
  }
  const char* home = std::getenv("HOME");
  if (home == nullptr) fail(option.name, concat(value, " begins with ~, and HOME is not set"));
  return home + value.substr(1);
}

std::string Options::read(const ChoiceOption& option, std::optional<std::string_view> fallback,
                          const std::vector<std::string>& words) const {
  const std::string_view key = option.name;
  const YamlNode* node = look_up(key);
  const std::string list = concat("one of ", join(words, ", "));
  if (node == nullptr && !fallback) fail(key, concat("is missing, allowed: ", list));
  const std::string wanted(node == nullptr ? *fallback : need_scalar(key, *node, list).scalar);
  for (const std::string& name : words) {
    if (canonical_name(name) != canonical_name(wanted)) continue;
    record(key, name);
    return name;
  }
  fail(key, concat(wanted, " is unknown", did_you_mean(canonical_name(wanted), words),
                   ", allowed: ", list));
}

std::pair<double, double> Options::read(const NumberPairOption& option) const {
  const auto& [fallback, each] = option.rule;
  const YamlNode* node = look_up(option.name);
  std::pair<double, double> value = fallback;
  if (node != nullptr) {
    const std::vector<YamlNode>& items = need_pair(option.name, *node, describe(option.rule)).items;
    const std::string allowed = describe(each);
    value = {number_in(option.name, items[0], each, allowed),
             number_in(option.name, items[1], each, allowed)};
  }
  record(option.name, concat("[", shortest(value.first), ", ", shortest(value.second), "]"));
  return value;
}

std::vector<double> Options::read(const NumberListOption& option) const {
  const YamlNode* node = look_up(option.name);
  if (node == nullptr) {
    record(option.name, "null");
    return {};
  }
  std::vector<double> values;
  std::vector<std::string> texts;
  for (const YamlNode& item : need_list(option.name, *node, describe(option.rule)).items) {
    const NumberRule& each = option.rule.each;
    values.push_back(number_in(option.name, item, each, describe(each)));
    texts.push_back(shortest(values.back()));
  }
  record(option.name, concat("[", join(texts, ", "), "]"));
  return values;
}

std::optional<std::pair<std::int64_t, std::int64_t>> Options::read(
    const RangeOption& option) const {
  const YamlNode* node = look_up(option.name);
  if (node == nullptr) {
    record(option.name, "null");
    return std::nullopt;
  }
  const std::string allowed = describe(option.rule);
  const std::vector<YamlNode>& items = need_pair(option.name, *node, allowed).items;
  const IntegerRule each{.min = 0};
  const std::pair value{number_in(option.name, items[0], each, describe(each)),
                        number_in(option.name, items[1], each, describe(each))};
  if (value.first >= value.second) {
    throw ConfigError(node->where, path(option.name), concat("holds nothing, allowed: ", allowed));
  }
  record(option.name, concat("[", value.first, ", ", value.second, "]"));
  return value;
}

Options Options::child(std::string_view name, const YamlNode* node) const {
  for (const auto& [known, child] : level_->children) {
    if (known == name) return {shared_, child};
  }
  auto child = std::make_shared<Level>();
  child->node = node;
  child->prefix = path(name) + ".";
  child->where = node == nullptr ? level_->where : node->where;
  level_->children.emplace_back(name, child);
  return {shared_, child};
}

Options Options::section(std::string_view key) const {
  const YamlNode* node = look_up(key);
  if (node != nullptr && node->kind != YamlNode::Kind::kMapping) {
    throw ConfigError(node->where, path(key),
                      concat("is ", kind_name(*node), ", allowed: a section of key: value lines"));
  }
  return child(key, node);
}

const YamlNode* Options::as_named(std::string_view key, const YamlNode& node) const {
  if (node.kind == YamlNode::Kind::kMapping) return &node;
  if (node.kind != YamlNode::Kind::kScalar) {
    throw ConfigError(
        node.where, path(key),
        concat("is ", kind_name(node), ", allowed: a name, or a section of key: value lines"));
  }
  return &shared_->made.emplace_back(named_mapping(node));
}

Options Options::named_section(std::string_view key) const {
  const YamlNode* node = look_up(key);
  return child(key, node == nullptr ? nullptr : as_named(key, *node));
}

std::vector<Options> Options::named_sections(std::string_view key) const {
  constexpr std::string_view kAllowed = "a list of names or sections, of one at least";
  const YamlNode* node = look_up(key);
  if (node == nullptr) fail(key, concat("is missing, allowed: ", kAllowed));
  static_cast<void>(need_list(key, *node, kAllowed));
  std::vector<Options> sections;
  for (std::size_t i = 0; i < node->items.size(); ++i) {
    const std::string name = concat(key, "[", i, "]");
    sections.push_back(child(name, as_named(name, node->items[i])));
  }
  return sections;
}

void Options::reject_unknown() const { level_->reject_unknown(); }

void Options::accept_unknown() const { level_->accepts_unknown = true; }

std::string Options::value_of(std::string_view key) const {
  const auto found = std::ranges::find(shared_->resolved, path(key), &ResolvedValue::path);
  return found == shared_->resolved.end() ? "" : found->value;
}

const std::vector<ResolvedValue>& Options::resolved() const { return shared_->resolved; }

namespace {

/// Splits a path: `a.b[0].c` becomes `a`, `b`, `[0]` (the item 0) and `c`.
std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  std::istringstream stream(path);
  for (std::string part; std::getline(stream, part, '.');) {
    const std::size_t bracket = part.find('[');
    parts.push_back(part.substr(0, bracket));
    if (bracket != std::string::npos) parts.push_back(part.substr(bracket));
  }
  return parts;
}

/// A value, or a section or list with its values in the order of their first ones.
struct Written {
  std::string value;
  std::vector<std::pair<std::string, Written>> inside;

  Written& at(const std::string& part) {
    for (auto& [name, written] : inside) {
      if (name == part) return written;
    }
    return inside.emplace_back(part, Written()).second;
  }

  void write(std::ostream& out, const std::string& margin) const {
    for (const auto& [name, written] : inside) {
      out << margin << (name.starts_with('[') ? "-" : name + ":");
      if (written.inside.empty()) out << " " << written.value;
      out << "\n";
      written.write(out, margin + "  ");
    }
  }
};

}  // namespace

std::string to_yaml(const std::vector<ResolvedValue>& values) {
  Written root;
  for (const ResolvedValue& entry : values) {
    Written* place = &root;
    for (const std::string& part : parts_of(entry.path)) place = &place->at(part);
    place->value = entry.value;
  }
  std::ostringstream out;
  root.write(out, "");
  return out.str();
}

}  // namespace gossamer

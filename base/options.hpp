#pragma once
// Options is a typed view of one section of the configuration. An option (option.hpp) says the
// name, type, range and default of a key, and read() reads it. After all keys have been read,
// reject_unknown() refuses every key of the file that no call has read. Options records every value
// read with its dotted path. The program prints this resolved configuration, defaults included, and
// compares it between ranks.
//
//   constexpr NumberOption kLr{"lr", "learning rate", {.fallback = 1e-3, .min = 0}};
//
//   Options optimizer = root.section("optimizer");
//   double lr = optimizer.read(kLr);
//   root.reject_unknown();
//
// Errors: ConfigError, which says the place in the file, the key, what is wrong and what is
// allowed. Copies are views of the same section. Not thread safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/option.hpp"

namespace gossamer {

struct YamlNode;

/// One resolved value: its dotted path and its value written as YAML.
struct ResolvedValue {
  std::string path;
  std::string value;
  friend bool operator==(const ResolvedValue&, const ResolvedValue&) = default;
};

class Options {
 public:
  /// An empty section: every key has its default.
  Options();
  /// Takes the tree's root, which must be a mapping or null.
  explicit Options(YamlNode root);
  /// A section written in code: `Options::parse("accum_iter: 4")`.
  static Options parse(std::string_view yaml);

  /// The value of an option, checked and recorded.
  std::int64_t read(const IntegerOption& option) const;
  double read(const NumberOption& option) const;
  /// `fallback` takes the place of the option's own.
  double read(const NumberOption& option, double fallback) const;
  bool read(const FlagOption& option) const;
  std::string read(const TextOption& option) const;
  /// The path with the home folder in place of `~`; the recorded value keeps the `~`.
  std::string read(const PathOption& option) const;
  /// Returns the word in the option's spelling.
  std::string read(const ChoiceOption& option) const { return read(option, option.rule.fallback); }
  /// `fallback` takes the place of the option's own.
  std::string read(const ChoiceOption& option, std::optional<std::string_view> fallback) const {
    return read(option, fallback, option.rule.all());
  }
  /// `fallback` and `words` take the place of the option's own.
  std::string read(const ChoiceOption& option, std::optional<std::string_view> fallback,
                   const std::vector<std::string>& words) const;
  std::pair<double, double> read(const NumberPairOption& option) const;
  std::vector<double> read(const NumberListOption& option) const;
  std::optional<std::pair<std::int64_t, std::int64_t>> read(const RangeOption& option) const;
  std::optional<std::int64_t> read(const OptionalIntegerOption& option) const;
  std::optional<double> read(const OptionalNumberOption& option) const;
  /// The number; nothing for the word.
  std::optional<std::int64_t> read(const IntegerOrWordOption& option) const;
  std::optional<double> read(const NumberOrWordOption& option) const;
  /// The section of a thing that has a name and perhaps options.
  Options read(const NamedOption& option) const { return named_section(option.name); }

  /// The section under `key`; an empty section when the key is not given.
  Options section(std::string_view key) const;
  /// The section of a thing that has a name and perhaps options. A scalar `ring` stands for the
  /// mapping `{name: ring}`.
  Options named_section(std::string_view key) const;
  /// The items of a list; each is a named_section(). The key must be given, and the list must not
  /// be empty.
  std::vector<Options> named_sections(std::string_view key) const;
  /// Keys that this section lacks are read from `base`, which is another section of the same tree.
  /// has() and reject_unknown() do not count them.
  void inherit(const Options& base) const;
  /// Makes the key known to reject_unknown(), as reading it does.
  void allow(std::string_view key) const;
  /// True if the key is given and not null. Does not count as reading the key.
  [[nodiscard]] bool has(std::string_view key) const;
  /// Throws a ConfigError about `key`, at the key's place in the file.
  [[noreturn]] void fail(std::string_view key, std::string_view what) const;

  /// Throws ConfigError for the first key that no call has read, in this section and in all
  /// sections taken from it.
  void reject_unknown() const;
  /// Makes reject_unknown() ignore unread keys of this section. For a section that this run does
  /// not use.
  void accept_unknown() const;

  /// The value that the last call for a key of this section has returned, as YAML; empty if none
  /// has.
  [[nodiscard]] std::string value_of(std::string_view key) const;
  /// All values read so far, from the whole tree and not just this section, in the order of
  /// reading.
  [[nodiscard]] const std::vector<ResolvedValue>& resolved() const;

 private:
  struct Shared;
  struct Level;

  Options(std::shared_ptr<Shared> shared, std::shared_ptr<Level> level);

  [[nodiscard]] std::string path(std::string_view key) const;
  /// The node of `key`, or nullptr when the key is not given or null. Marks the key as known.
  [[nodiscard]] const YamlNode* look_up(std::string_view key) const;
  [[nodiscard]] const YamlNode& need_scalar(std::string_view key, const YamlNode& node,
                                            std::string_view allowed) const;
  [[nodiscard]] const YamlNode& need_list(std::string_view key, const YamlNode& node,
                                          std::string_view allowed) const;
  [[nodiscard]] const YamlNode& need_pair(std::string_view key, const YamlNode& node,
                                          std::string_view allowed) const;
  /// Reads the number in a node. Errors say that `allowed` is allowed.
  [[nodiscard]] double number_in(std::string_view key, const YamlNode& node, const NumberRule& rule,
                                 const std::string& allowed) const;
  [[nodiscard]] std::int64_t number_in(std::string_view key, const YamlNode& node,
                                       const IntegerRule& rule, const std::string& allowed) const;
  /// The integer or number of a key, or its fallback.
  template <class Value, class Rule>
  Value number(std::string_view key, const Rule& rule, const std::string& allowed) const;
  template <class Value, class Rule>
  std::optional<Value> number_or_null(const TypedOption<NullOr<Rule>>& option) const;
  template <class Value, class Rule>
  std::optional<Value> number_or_word(const TypedOption<WordOr<Rule>>& option) const;
  std::string text(std::string_view key, std::optional<std::string_view> fallback) const;
  void record(std::string_view key, std::string value) const;
  /// The section called `name`. The first call makes it from `node`; later calls return the same
  /// one.
  [[nodiscard]] Options child(std::string_view name, const YamlNode* node) const;
  /// `node` itself, or the mapping that a scalar stands for; see named_section().
  [[nodiscard]] const YamlNode* as_named(std::string_view key, const YamlNode& node) const;

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Level> level_;
};

/// Writes the values as nested YAML, in their order; a section stands where its first value does.
std::string to_yaml(const std::vector<ResolvedValue>& values);

}  // namespace gossamer

#pragma once
// Options is a typed view of one section of the configuration. The code that reads a key defines
// it, by an option (option.hpp) or by the call's type, default and range. After all keys have been
// read, reject_unknown() refuses every key of the file that no call has read. Options records every
// value read with its dotted path. The program prints this resolved configuration, defaults
// included, and compares it between ranks.
//
//   Options optimizer = root.section("optimizer");
//   double lr = optimizer.number("lr", {.fallback = 1e-3, .min = 0});
//   root.reject_unknown();
//
// Errors: ConfigError, which says the place in the file, the key, what is wrong and what is
// allowed. Copies are views of the same section. Not thread safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <typeindex>
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
  std::int64_t read(const IntegerOption& option) const { return integer(option.name, option.rule); }
  double read(const NumberOption& option) const { return number(option.name, option.rule); }
  /// `fallback` takes the place of the option's own.
  double read(const NumberOption& option, double fallback) const;
  bool read(const FlagOption& option) const { return flag(option.name, option.rule.fallback); }
  std::string read(const PathOption& option) const;
  /// In the option's spelling.
  std::string read(const ChoiceOption& option) const { return read(option, option.rule.fallback); }
  /// `fallback` takes the place of the option's own.
  std::string read(const ChoiceOption& option, std::optional<std::string_view> fallback) const;
  std::pair<double, double> read(const NumberPairOption& option) const {
    return number_pair(option.name, option.rule.fallback, option.rule.each);
  }
  std::optional<std::pair<std::int64_t, std::int64_t>> read(const RangeOption& option) const {
    return range(option.name);
  }
  std::optional<std::int64_t> read(const OptionalIntegerOption& option) const {
    return optional_integer(option.name, option.rule.rule);
  }
  std::optional<double> read(const OptionalNumberOption& option) const {
    return optional_number(option.name, option.rule.rule);
  }
  /// The section of a thing that has a name and perhaps options.
  Options read(const NamedOption& option) const { return named_section(option.name); }

  std::int64_t integer(std::string_view key, const IntegerRule& rule) const;
  double number(std::string_view key, const NumberRule& rule) const;
  bool flag(std::string_view key, bool fallback) const;
  /// Any scalar, as the file spells it (`run: 007` is the text `007`). Without a fallback the key
  /// must be given.
  std::string text(std::string_view key, const std::optional<std::string>& fallback) const;
  /// Text that is the path of a file or folder. A leading `~/` stands for the home folder of this
  /// process; the recorded value keeps it.
  std::string file_path(std::string_view key, const std::optional<std::string>& fallback) const;
  /// One of `allowed`, in either spelling (`-` or `_`); returns the spelling of `allowed`.
  std::string choice(std::string_view key, const std::vector<std::string>& allowed,
                     const std::optional<std::string>& fallback) const;
  /// Two numbers `[a, b]`, each within the rule.
  std::pair<double, double> number_pair(std::string_view key, std::pair<double, double> fallback,
                                        const NumberRule& each) const;
  /// A list of one number or more, each within the rule; empty when the key is not given.
  std::vector<double> numbers(std::string_view key, const NumberRule& each) const;
  /// `[first, last)` with 0 <= first < last; nothing when the key is not given.
  std::optional<std::pair<std::int64_t, std::int64_t>> range(std::string_view key) const;
  /// Read an integer or a number whose absence has a meaning of its own.
  std::optional<std::int64_t> optional_integer(std::string_view key, IntegerRule rule) const;
  std::optional<double> optional_number(std::string_view key, NumberRule rule) const;

  /// A number, or `word`, which gives no number. A missing key has the rule's fallback, else
  /// `word`.
  std::optional<double> number_or(std::string_view word, std::string_view key,
                                  NumberRule rule) const;

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

  /// Names in the whole tree may mean these rows, beside the rows of the table. The rows
  /// must outlive all views of the tree. See PlugIns in core/algorithms/plug_ins.hpp.
  template <class Row>
  void take_along(std::span<const Row> rows) const {
    keep_rows(typeid(Row), {rows.data(), rows.size()});
  }
  /// The rows that take_along() was given.
  template <class Row>
  [[nodiscard]] std::span<const Row> rows_along() const {
    const AnyRows rows = kept_rows(typeid(Row));
    return {static_cast<const Row*>(rows.first), rows.size};
  }

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
  /// Rows of any table.
  struct AnyRows {
    const void* first = nullptr;
    std::size_t size = 0;
  };
  struct Shared;
  struct Level;

  Options(std::shared_ptr<Shared> shared, std::shared_ptr<Level> level);

  [[nodiscard]] std::string path(std::string_view key) const;
  /// The node of `key`, or nullptr when the key is not given or null. Marks the key as known.
  [[nodiscard]] const YamlNode* look_up(std::string_view key) const;
  [[nodiscard]] const YamlNode& need_scalar(std::string_view key, const YamlNode& node,
                                            std::string_view allowed) const;
  [[nodiscard]] double read_number(std::string_view key, const YamlNode& node,
                                   const NumberRule& rule) const;
  [[nodiscard]] std::int64_t read_integer(std::string_view key, const YamlNode& node,
                                          const IntegerRule& rule) const;
  void record(std::string_view key, std::string value) const;
  void keep_rows(std::type_index type, AnyRows rows) const;
  [[nodiscard]] AnyRows kept_rows(std::type_index type) const;
  /// The section called `name`. The first call makes it from `node`; later calls return the same
  /// one.
  [[nodiscard]] Options child(std::string_view name, const YamlNode* node) const;
  /// `node` itself, or the mapping that a scalar stands for; see named_section().
  [[nodiscard]] const YamlNode* as_named(std::string_view key, const YamlNode& node) const;

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Level> level_;
};

/// Writes the values as nested YAML, in their order. Values of one section must stand together.
std::string to_yaml(const std::vector<ResolvedValue>& values);

}  // namespace gossamer

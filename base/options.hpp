#pragma once
// A typed view of one section of the configuration. Reading is the schema: a key is known because
// somebody asked for it, with its type, default and range. When all have read what they know,
// reject_unknown() refuses the rest. Every value read is recorded with its dotted path, so that the
// resolved configuration, defaults included, can be printed and compared between ranks.
//
//   Options optimizer = root.section("optimizer");
//   double lr = optimizer.number("lr", {.fallback = 1e-3, .min = 0});
//   root.reject_unknown();
//
// Errors are ConfigErrors with place, key, what is wrong and what is allowed. Copies are views of
// the same section. Not thread safe.

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gossamer {

struct YamlNode;

/// A key without a fallback must be given.
struct IntegerRule {
  std::optional<std::int64_t> fallback = std::nullopt;
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};

struct NumberRule {
  std::optional<double> fallback = std::nullopt;
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  /// The bound itself is not allowed.
  bool above_min = false;
  bool below_max = false;
};

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

  std::int64_t integer(std::string_view key, const IntegerRule& rule) const;
  double number(std::string_view key, const NumberRule& rule) const;
  bool flag(std::string_view key, bool fallback) const;
  /// Any scalar, as it is written (`run: 007` is the text `007`). Without a fallback the key must
  /// be given.
  std::string text(std::string_view key, const std::optional<std::string>& fallback) const;
  /// One of `allowed`, in either spelling (`-` or `_`); returns the spelling of `allowed`.
  std::string choice(std::string_view key, const std::vector<std::string>& allowed,
                     const std::optional<std::string>& fallback) const;
  /// Two numbers `[a, b]`, each within the rule.
  std::pair<double, double> number_pair(std::string_view key, std::pair<double, double> fallback,
                                        const NumberRule& each) const;
  /// `[first, last)` with 0 <= first < last; nothing when the key is not given.
  std::optional<std::pair<std::int64_t, std::int64_t>> range(std::string_view key) const;
  /// Like integer and number, for keys whose absence has a meaning of its own.
  std::optional<std::int64_t> optional_integer(std::string_view key, IntegerRule rule) const;
  std::optional<double> optional_number(std::string_view key, NumberRule rule) const;

  /// The mapping under `key`; empty when the key is not given.
  Options section(std::string_view key) const;
  /// The same for something that has a name and perhaps options: a scalar `ring` stands for the
  /// mapping `{name: ring}`.
  Options named_section(std::string_view key) const;
  /// The items of a list of such things. The key must be given; the list may not be empty.
  std::vector<Options> named_sections(std::string_view key) const;
  /// The key is given and not null.
  [[nodiscard]] bool has(std::string_view key) const;
  /// A ConfigError about `key`, at its place in the file.
  [[noreturn]] void fail(std::string_view key, std::string_view what) const;

  /// Throws for the first key, in this section and all sections taken from it, that nobody read.
  void reject_unknown() const;
  /// For a section that nobody reads this time: reject_unknown() lets it pass.
  void accept_unknown() const;

  /// All values read so far from the whole tree, in the order of reading.
  [[nodiscard]] const std::vector<ResolvedValue>& resolved() const;

 private:
  struct Shared;
  struct Level;

  Options(std::shared_ptr<Shared> shared, std::shared_ptr<Level> level);

  [[nodiscard]] std::string path(std::string_view key) const;
  /// The node of a key that is given and not null; marks the key as known.
  [[nodiscard]] const YamlNode* look_up(std::string_view key) const;
  [[nodiscard]] const YamlNode& need_scalar(std::string_view key, const YamlNode& node,
                                            std::string_view allowed) const;
  [[nodiscard]] double read_number(std::string_view key, const YamlNode& node,
                                   const NumberRule& rule) const;
  [[nodiscard]] std::int64_t read_integer(std::string_view key, const YamlNode& node,
                                          const IntegerRule& rule) const;
  void record(std::string_view key, std::string value) const;
  /// The child called `name`, made from `node` when it is first asked for.
  [[nodiscard]] Options child(std::string_view name, const YamlNode* node) const;
  /// `node` itself, or what a scalar stands for; see named_section().
  [[nodiscard]] const YamlNode* as_named(std::string_view key, const YamlNode& node) const;

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Level> level_;
};

/// Nested YAML of dotted paths, in their order; equal sections must stand together.
std::string to_yaml(const std::vector<ResolvedValue>& values);

}  // namespace gossamer

#pragma once
// Look-ups that all registries share. A registry is a plain table: a constexpr array of rows that
// have a `name`. Names match in either spelling, `-` or `_`, and in any case. A program may have
// rows of its own (PlugIns in core/algorithms/plug_ins.hpp) and passes them to the functions that
// look names up. A user's rows stand behind the rows of the table. Thread safe: tables are
// constant.

#include <array>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {

/// A row that consists of a name and a value.
template <class T>
struct NamedValue {
  std::string_view name;
  T value;
};

/// A view of the table's rows, and behind them a user's own rows. The caller keeps both alive.
template <class Row>
auto with_own(std::span<const Row> table, std::span<const Row> own) {
  return std::array{table, own} | std::views::join;
}

template <class Table>
std::vector<std::string> names_of(const Table& table) {
  std::vector<std::string> names;
  for (const auto& row : table) names.emplace_back(row.name);
  return names;
}

/// The text of an error, as `there is no optimizer adamm (did you mean adam?), allowed: sgd, adam,
/// ...`. `kind` is the word before the name, such as `optimizer`.
template <class Table>
std::string unknown_name(const Table& table, std::string_view kind, std::string_view name) {
  const std::vector<std::string> names = names_of(table);
  return concat("there is no ", kind, " ", name, did_you_mean(canonical_name(name), names),
                ", allowed: ", join(names, ", "));
}

/// The row called `name`, in either spelling, or nullptr.
template <class Table>
auto find_row(const Table& table, std::string_view name) -> decltype(&*table.begin()) {
  for (const auto& row : table) {
    if (canonical_name(row.name) == canonical_name(name)) return &row;
  }
  return nullptr;
}

/// The row called `name`, in either spelling. Throws ConfigError with unknown_name() if there is
/// none.
template <class Table>
const auto& row_of(const Table& table, std::string_view kind, std::string_view name) {
  if (const auto* row = find_row(table, name)) return *row;
  throw ConfigError(unknown_name(table, kind, name));
}

}  // namespace gossamer

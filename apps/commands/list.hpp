#pragma once
// Prints the tables of plug-ins, as text and as JSON.

#include <ostream>
#include <span>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/algorithms/plug_ins.hpp"

namespace gossamer::apps {

/// What the rows of all tables of plug-ins have.
struct PlugInRow {
  std::string_view name;
  std::string_view summary;
  std::span<const OptionEntry> options = {};
  /// A value of the key, for rows that are no names.
  std::string_view example = {};
};

/// The plug-ins that a configuration names under a key, as `model.name`; empty: it names none.
std::vector<PlugInRow> rows_named_by(std::string_view key);
/// The topologies made of others.
std::vector<PlugInRow> wrapper_rows();

/// The rows of a kind (`topologies`, `optimizers`, ...): name, summary, the other columns of the
/// table, and options; last the rows of `own`. Throws ConfigError for an unknown kind.
nlohmann::ordered_json rows_of_kind(std::string_view kind, const PlugIns& own = {});

/// Prints the rows of a kind as a table for people, at most 100 columns wide.
void print_kind(std::ostream& out, std::string_view kind, const PlugIns& own = {});

}  // namespace gossamer::apps

#pragma once
// Prints the tables of plug-ins, as text and as JSON.

#include <ostream>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/algorithms/plug_ins.hpp"

namespace gossamer::apps {

/// The rows of a kind (`topologies`, `optimizers`, ...): name, summary, the other columns of the
/// table, and options; last the rows of `own`. Throws ConfigError for an unknown kind.
nlohmann::ordered_json rows_of_kind(std::string_view kind, const PlugIns& own = {});

/// Prints the rows of a kind as a table for people, at most 100 columns wide.
void print_kind(std::ostream& out, std::string_view kind, const PlugIns& own = {});

}  // namespace gossamer::apps

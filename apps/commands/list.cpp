// gossamer list [KIND]

#include "apps/commands/list.hpp"

#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>

#include "apps/commands/commands.hpp"
#include "apps/data/dataset.hpp"
#include "apps/models/losses.hpp"
#include "apps/models/models.hpp"
#include "base/error.hpp"
#include "base/registry.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "core/algorithms/algorithm.hpp"
#include "optim/codec.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLineWidth = 100;

template <class Taken>
std::string names_of_taken(const Taken& takes) {
  return std::string(name_of(takes));
}

std::string names_of_taken(const std::optional<SampleKind>& takes) {
  return takes ? std::string(name_of(*takes))
               : concat(name_of(SampleKind::kArrays), " or ", name_of(SampleKind::kTokens));
}

/// The columns of a table, as far as its rows have the fields.
template <class Entry>
Json row_of_table(const Entry& entry) {
  Json row = {{"name", entry.name}, {"summary", entry.summary}};
  if constexpr (requires { entry.sizes; }) row["sizes"] = entry.sizes;
  if constexpr (requires { entry.needs_options; }) row["needs_options"] = entry.needs_options;
  if constexpr (std::is_same_v<Entry, AlgorithmEntry>) {
    const TopologyKind kind = entry.topologies;
    row["needs_topology"] = kind != TopologyKind::kNone;
    row["needs_undirected_topology"] = kind == TopologyKind::kUndirected ||
                                       kind == TopologyKind::kStatic || kind == TopologyKind::kTree;
    row["needs_static_topology"] = kind == TopologyKind::kStatic;
    row["needs_tree_topology"] = kind == TopologyKind::kTree;
    row["needs_nodes"] = kind == TopologyKind::kNodes;
    row["communicates"] = entry.steps != RankSteps::kAlone;
    row["takes_codec"] = entry.takes_codec;
    row["keeps_models_equal"] = entry.equal_models == EqualModels::kAfterEveryStep;
    row["asynchronous"] = entry.asynchronous();
  }
  if constexpr (requires { entry.takes; }) row["takes"] = names_of_taken(entry.takes);
  if constexpr (requires { entry.gives; }) row["gives"] = name_of(entry.gives);
  row["options"] = Json::array();
  if constexpr (requires { entry.options; }) {
    for (const OptionEntry& option : entry.options) {
      row["options"].push_back({{"name", option.name}, {"summary", option.text()}});
    }
  }
  return row;
}

/// The rows of the tables, one after the other.
template <class... Tables>
Json rows_of_tables(const Tables&... tables) {
  Json rows = Json::array();
  const auto add = [&rows](const auto& table) {
    for (const auto& entry : table) rows.push_back(row_of_table(entry));
  };
  (add(tables), ...);
  return rows;
}

struct Kind {
  std::string_view name;
  /// The key under which a configuration names a plug-in of this kind.
  std::string_view key;
  Json (*rows)(const PlugIns& own);
};

constexpr std::array kKinds = {
    Kind{"topologies", "topology.name",
         [](const PlugIns& own) { return rows_of_tables(topology_table(), own.topologies); }},
    Kind{"wrappers", "in place of topology.name: topologies made of others",
         [](const PlugIns&) { return rows_of_tables(wrapper_table()); }},
    Kind{"optimizers", "optimizer.name",
         [](const PlugIns& own) { return rows_of_tables(optimizer_table(), own.optimizers); }},
    Kind{"schedules", "lr_schedule.name",
         [](const PlugIns&) { return rows_of_tables(schedule_table()); }},
    Kind{"algorithms", "algorithm",
         [](const PlugIns& own) { return rows_of_tables(algorithm_table(), own.algorithms); }},
    Kind{"codecs", "comm.codec",
         [](const PlugIns& own) { return rows_of_tables(codec_table(), own.codecs); }},
    Kind{"models", "model.name", [](const PlugIns&) { return rows_of_tables(model_table()); }},
    Kind{"losses", "train.loss", [](const PlugIns&) { return rows_of_tables(loss_table()); }},
    Kind{"data", "data.name", [](const PlugIns&) { return rows_of_tables(dataset_table()); }},
    Kind{"backends", "comm.backend",
         [](const PlugIns&) { return rows_of_tables(backend_table()); }},
};

const Kind& find_kind(std::string_view name) {
  return row_of(kKinds, "kind of plug-in called", name);
}

/// Prints words in lines of at most kLineWidth columns. All lines but the first begin with `indent`
/// spaces; the first line already stands at `column`.
void print_wrapped(std::ostream& out, const std::string& text, std::size_t column,
                   std::size_t indent) {
  std::istringstream words(text);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && column + 1 + word.size() > kLineWidth) {
      out << "\n" << std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      out << ' ';
      ++column;
    }
    out << word;
    column += word.size();
  }
  out << "\n";
}

void print_row(std::ostream& out, const Json& row, std::size_t indent) {
  const std::string margin(indent, ' ');
  const auto line = [&](const std::string& text) {
    out << margin;
    print_wrapped(out, text, indent, indent + 4);
  };
  const std::string name = concat("  ", row["name"].get<std::string>());
  out << name << std::string(indent - name.size(), ' ');
  print_wrapped(out, row["summary"], indent, indent);
  for (const auto& [key, value] : row.items()) {
    if (key == "name" || key == "summary" || key == "options" || value == false) continue;
    std::string label = key;
    std::ranges::replace(label, '_', ' ');
    line(value == true ? label : concat(label, ": ", value.get<std::string>()));
  }
  for (const Json& option : row["options"]) {
    line(concat(option["name"].get<std::string>(), ": ", option["summary"].get<std::string>()));
  }
}

void list(const std::string& kind, bool json, const PlugIns& own) {
  std::vector<std::string> kinds = names_of(kKinds);
  if (!kind.empty()) kinds = {std::string(find_kind(kind).name)};
  if (json) {
    Json tables;
    for (const std::string& name : kinds) tables[name] = rows_of_kind(name, own);
    std::cout << tables.dump(2) << "\n";
    return;
  }
  for (const std::string& name : kinds) {
    if (name != kinds.front()) std::cout << "\n";
    print_kind(std::cout, name, own);
  }
}

}  // namespace

Json rows_of_kind(std::string_view kind, const PlugIns& own) { return find_kind(kind).rows(own); }

void print_kind(std::ostream& out, std::string_view kind, const PlugIns& own) {
  const Kind& found = find_kind(kind);
  const Json rows = found.rows(own);
  std::size_t widest = 0;
  for (const Json& row : rows) widest = std::max(widest, row["name"].get<std::string>().size());
  out << found.name << " (" << found.key << ")\n";
  for (const Json& row : rows) print_row(out, row, widest + 4);
}

void add_list_command(CLI::App& program, int& exit_code, const PlugIns& own) {
  auto kind = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  CLI::App* command = program.add_subcommand(
      "list", "Show all names that a configuration can have, with options and defaults");
  command->add_option("kind", *kind,
                      concat("One of ", join(names_of(kKinds), ", "), "; all when not given"));
  command->add_flag("--json", *json, "As JSON: an object with an array for every kind");
  command->footer(
      "configs/reference.yaml explains the keys that all plug-ins of a kind share.\n\n"
      "Examples:\n"
      "  gossamer list optimizers\n"
      "  gossamer list --json");
  command->callback([kind, json, &exit_code, &own] {
    list(*kind, *json, own);
    exit_code = static_cast<int>(ExitCode::kDone);
  });
}

}  // namespace gossamer::apps

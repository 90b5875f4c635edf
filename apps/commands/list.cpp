// gossamer list [KIND] [--json | --yaml]

#include "apps/commands/list.hpp"

#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>

#include "apps/commands/commands.hpp"
#include "apps/commands/reference.hpp"
#include "apps/data/dataset.hpp"
#include "apps/models/losses.hpp"
#include "apps/models/models.hpp"
#include "apps/train/sections.hpp"
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
    row["survives"] = entry.survives;
  }
  if constexpr (requires { entry.takes; }) row["takes"] = names_of_taken(entry.takes);
  if constexpr (requires { entry.gives; }) row["gives"] = name_of(entry.gives);
  if constexpr (requires { entry.example; }) {
    if (!entry.example.empty()) row["example"] = entry.example;
  }
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
  std::vector<PlugInRow> (*plain_rows)();
};

/// `kOwn`: the member of PlugIns with a user's rows; null: there are none of this kind.
template <auto kTable, auto kOwn = nullptr>
constexpr Kind kind_of(std::string_view name, std::string_view key) {
  return {name, key,
          [](const PlugIns& own) {
            if constexpr (kOwn == nullptr) {
              return rows_of_tables(kTable());
            } else {
              return rows_of_tables(kTable(), own.*kOwn);
            }
          },
          [] {
            std::vector<PlugInRow> rows;
            for (const auto& entry : kTable()) {
              rows.push_back({.name = entry.name, .summary = entry.summary});
              if constexpr (requires { entry.options; }) rows.back().options = entry.options;
              if constexpr (requires { entry.example; }) rows.back().example = entry.example;
            }
            return rows;
          }};
}

constexpr std::array kKinds = {
    kind_of<section_table>("sections", "keys of a configuration beside those of plug-ins"),
    kind_of<topology_table, &PlugIns::topologies>("topologies", "topology.name"),
    kind_of<wrapper_table>("wrappers", "in place of topology.name: topologies made of others"),
    kind_of<optimizer_table, &PlugIns::optimizers>("optimizers", "optimizer.name"),
    kind_of<schedule_table>("schedules", "lr_schedule.name"),
    kind_of<algorithm_table, &PlugIns::algorithms>("algorithms", "algorithm.name"),
    kind_of<codec_table, &PlugIns::codecs>("codecs", "comm.codec"),
    kind_of<model_table>("models", "model.name"),
    kind_of<loss_table>("losses", "train.loss"),
    kind_of<dataset_table>("data", "data.name"),
    kind_of<backend_table>("backends", "comm.backend"),
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

std::vector<PlugInRow> rows_named_by(std::string_view key) {
  const auto* const kind = std::ranges::find(kKinds, key, &Kind::key);
  return kind == kKinds.end() ? std::vector<PlugInRow>() : kind->plain_rows();
}

std::vector<PlugInRow> wrapper_rows() { return find_kind("wrappers").plain_rows(); }

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
  auto yaml = std::make_shared<bool>(false);
  CLI::App* command = program.add_subcommand(
      "list", "Show all names that a configuration can have, with options and defaults");
  command->add_option("kind", *kind,
                      concat("One of ", join(names_of(kKinds), ", "), "; all when not given"));
  command->add_flag("--json", *json, "As JSON: an object with an array for every kind");
  command
      ->add_flag("--yaml", *yaml,
                 "As a configuration with every key and its default: configs/reference.yaml")
      ->excludes("kind", "--json");
  command->footer(
      "Examples:\n"
      "  gossamer list optimizers\n"
      "  gossamer list --json\n"
      "  gossamer list --yaml > reference.yaml");
  command->callback([kind, json, yaml, &exit_code, &own] {
    if (*yaml) {
      print_reference(std::cout);
    } else {
      list(*kind, *json, own);
    }
    exit_code = static_cast<int>(ExitCode::kDone);
  });
}

}  // namespace gossamer::apps

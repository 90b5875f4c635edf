#include "core/algorithms/plug_ins.hpp"

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

template <class Row>
void check_names(std::string_view kind, std::span<const Row> table, std::span<const Row> own) {
  std::set<std::string> names;
  for (const Row& row : table) names.insert(canonical_name(row.name));
  for (const Row& row : own) {
    if (names.insert(canonical_name(row.name)).second) continue;
    throw ConfigError(concat("two rows have the name ", row.name, " (", kind,
                             "); give your own row another name"));
  }
}

}  // namespace

Options PlugIns::options(YamlNode root) const {
  check_names("algorithm", algorithm_table(), algorithms);
  check_names("topology", topology_table(), topologies);
  check_names("optimizer", optimizer_table(), optimizers);
  check_names("codec", codec_table(), codecs);
  Options options(std::move(root));
  options.take_along(algorithms);
  options.take_along(topologies);
  options.take_along(optimizers);
  options.take_along(codecs);
  return options;
}

}  // namespace gossamer

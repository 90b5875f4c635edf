#include "core/algorithms/plug_ins.hpp"

#include <set>
#include <string>
#include <string_view>

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

void PlugIns::check() const {
  check_names("algorithm", algorithm_table(), algorithms);
  check_names("topology", topology_table(), topologies);
  check_names("optimizer", optimizer_table(), optimizers);
  check_names("codec", codec_table(), codecs);
}

}  // namespace gossamer

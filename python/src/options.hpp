#pragma once
// Options that Python gives. Their topologies may be a user's own, whose rounds Python has made:
//
//   {name: OwnTopology, class: Pairs, rounds: TEXT}
//
// TEXT is what a topology file holds (topology_file.hpp), and `class` names it in messages.

#include <string>

#include "base/options.hpp"

namespace gossamer::python {

/// Throws ConfigError for what is no YAML.
Options given_options(const std::string& yaml);

}  // namespace gossamer::python

#pragma once
// Reads lists of nodes as SLURM writes them: `n[01-03,07],gpu1`. Thread safe.

#include <string>
#include <string_view>

namespace gossamer {

/// The first host of the list. Throws ConfigError for text that is no such list.
std::string first_node(std::string_view list);

}  // namespace gossamer

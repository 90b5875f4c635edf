#pragma once
// Where a run takes place: versions, hosts, processors. For the file environment.json of a run.

#include <string>

#include <nlohmann/json.hpp>

#include "comm/communicator.hpp"

namespace gossamer::apps {

/// The name of this machine.
std::string host_name();

/// Collective. `versions` has one line for each library: its name, spaces, its version. Returns
/// {started, world_size, node_size, versions: {...}, hosts: [{name, processor, cores, memory_gb,
/// ranks}]}.
nlohmann::ordered_json describe_environment(Communicator& communicator, const World& world,
                                            const std::string& versions);

}  // namespace gossamer::apps

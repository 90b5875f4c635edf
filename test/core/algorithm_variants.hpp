#pragma once
// The algorithms as tests run them: every row of the table, and options that change what it
// computes.

#include "test/core/test_device.hpp"

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/algorithm.hpp"

namespace gossamer {

/// The name of an algorithm, and its options as YAML.
inline constexpr std::array kAlgorithmVariants = {
    std::pair{"gossip", ""},
    std::pair{"allreduce", ""},
    std::pair{"allreduce", "overlap: false"},
    std::pair{"allreduce", "delay: 1"},
    std::pair{"allreduce", "delay: 1, overlap: false"},
    std::pair{"allreduce", "delay: 1, overlap: false, average: false"},
    std::pair{"local", ""},
    std::pair{"gradient_tracking", ""},
    std::pair{"choco", "fraction: 0.3, consensus_step: 0.6"},
    std::pair{"choco", "fraction: 1, consensus_step: 1"},
    std::pair{"outer", "every: 3"},
    std::pair{"outer", "every: 2, kind: diloco, lr: 0.8, momentum: 0.6"},
    std::pair{"relay", ""},
    std::pair{"node_gossip", ""},
    std::pair{"node_gossip", "shard: optimizer"},
    std::pair{"late_average", "every: 2, late: 2"},
    std::pair{"late_average", "every: 5, late: 3, warmup: 2"},
};

/// The algorithms whose ranks go in step, so that runs repeat bit for bit. async_gossip_test.cpp
/// tests the others.
inline std::vector<std::string> algorithms_in_step() {
  std::vector<std::string> names = algorithm_names();
  std::erase_if(
      names, [](const std::string& name) { return AlgorithmChoice(name).entry().asynchronous(); });
  return names;
}

/// The topology on which tests run an algorithm, if they do not care: `usual`, if it will do.
inline std::string topology_for(std::string_view algorithm, std::string_view usual) {
  switch (AlgorithmChoice(algorithm).entry().topologies) {
    case TopologyKind::kTree:
      return "binary-tree";
    case TopologyKind::kNodes:
      return "hierarchical";
    case TopologyKind::kStatic:
      return "static-ring";
    default:
      return std::string(usual);
  }
}

/// Whether an algorithm's blocks may be there.
inline bool runs_at(std::string_view algorithm, Where where, std::string_view options = "") {
  if (options == "shard: optimizer") return where == Where::kHost;
  const bool on_host =
      where == Where::kHost || where == Where::kLagging || where == Where::kRelayed;
  return on_host || !AlgorithmChoice(algorithm).entry().processors_only;
}

}  // namespace gossamer

#pragma once
// The algorithms as tests run them: every row of the table, and options that change what it
// computes.

#include "test/core/test_device.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/algorithms/algorithm.hpp"

namespace gossamer {

/// The name of an algorithm, and its options as YAML.
using AlgorithmVariant = std::pair<const char*, const char*>;

/// Options that change what an algorithm computes.
inline constexpr std::array kOptionVariants = {
    AlgorithmVariant{"allreduce", ""},
    AlgorithmVariant{"allreduce", "overlap: false"},
    AlgorithmVariant{"allreduce", "delay: 1"},
    AlgorithmVariant{"allreduce", "delay: 1, overlap: false"},
    AlgorithmVariant{"allreduce", "delay: 1, overlap: false, average: false"},
    AlgorithmVariant{"choco", "fraction: 0.3, consensus_step: 0.6"},
    AlgorithmVariant{"choco", "fraction: 1, consensus_step: 1"},
    AlgorithmVariant{"gossip", "overlap: false"},
    AlgorithmVariant{"gossip", ""},
    AlgorithmVariant{"outer", "every: 2, overlap: false"},
    AlgorithmVariant{"outer", "every: 3"},
    AlgorithmVariant{"outer", "every: 2, kind: diloco, lr: 0.8, momentum: 0.6"},
    AlgorithmVariant{"outer", "every: 2, kind: noloco"},
    AlgorithmVariant{"outer", "every: 3, kind: slowmo, rounds: topology, late: 2"},
    AlgorithmVariant{"outer", "every: 3, kind: diloco, rounds: all, late: 3, blend: 0.3"},
    AlgorithmVariant{"outer", "every: 2, kind: gasloc, late: 2, blend: 0"},
    AlgorithmVariant{"node_gossip", ""},
    AlgorithmVariant{"node_gossip", "shard: optimizer"},
    AlgorithmVariant{"late_average", "every: 2, late: 2"},
    AlgorithmVariant{"late_average", "every: 5, late: 3, warmup: 2"},
};

/// The algorithms whose ranks go in step, so that runs repeat bit for bit. async_gossip_test.cpp
/// tests the others.
inline std::vector<std::string> algorithms_in_step() {
  std::vector<std::string> names = algorithm_names();
  std::erase_if(
      names, [](const std::string& name) { return AlgorithmChoice(name).entry().asynchronous(); });
  return names;
}

/// Every algorithm in step of the table, in the variants above; as it is, if there are none.
inline std::vector<AlgorithmVariant> algorithm_variants() {
  std::vector<AlgorithmVariant> variants;
  for (const AlgorithmEntry& entry : algorithm_table()) {
    if (entry.asynchronous()) continue;
    const std::size_t before = variants.size();
    std::ranges::copy_if(
        kOptionVariants, std::back_inserter(variants),
        [&](const AlgorithmVariant& variant) { return variant.first == entry.name; });
    if (variants.size() == before) variants.emplace_back(entry.name.data(), "");
  }
  return variants;
}

/// Every algorithm in step once, in its last variant, which has the most state.
inline std::vector<AlgorithmVariant> richest_variants() {
  std::vector<AlgorithmVariant> richest;
  for (const AlgorithmVariant& variant : algorithm_variants()) {
    if (!richest.empty() && std::string_view(richest.back().first) == variant.first) {
      richest.pop_back();
    }
    richest.push_back(variant);
  }
  return richest;
}

/// Whether rules that look at what mixing changes see it.
inline bool shows_mixing(std::string_view algorithm, std::string_view options) {
  return algorithm != "gossip" || options != "overlap: false";
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
  return on_host || AlgorithmChoice(algorithm).entry().processors_only.empty();
}

}  // namespace gossamer

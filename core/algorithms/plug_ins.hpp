#pragma once
// Rows of a user's own: algorithms, topologies, optimizers and codecs that stand in no table of the
// project. A configuration takes them along, so that its names may mean these rows, and whatever is
// read from it knows them.
//
// The rows must outlive everything that is read. Any thread may call.

#include <span>

#include "base/options.hpp"
#include "base/yaml.hpp"
#include "core/algorithms/algorithm.hpp"
#include "optim/codec.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer {

struct PlugIns {
  std::span<const AlgorithmEntry> algorithms = {};
  std::span<const TopologyEntry> topologies = {};
  std::span<const OptimizerEntry> optimizers = {};
  std::span<const CodecEntry> codecs = {};

  /// The configuration of a tree, with these rows. Throws ConfigError as Options does, and for a
  /// row with the name of another one.
  [[nodiscard]] Options options(YamlNode root) const;
};

}  // namespace gossamer

#pragma once
// Rows of a user's own: algorithms, topologies, optimizers and codecs that stand in no table of the
// project. Functions that look names up take the rows of their kind beside the table.
//
// The rows must outlive everything that is read. Any thread may call.

#include <span>

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

  /// Throws ConfigError for a row with the name of another one.
  void check() const;
};

}  // namespace gossamer

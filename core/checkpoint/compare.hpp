#pragma once
// Compares the state of two checkpoints. Names below `record/` are left out: they hold
// measurements, on which nothing that is computed depends.
//
// Errors: CheckpointError with the path.

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.hpp"

namespace gossamer {

/// SHA-256 over names, types, shapes and values of the state of all ranks, in the order of ranks
/// and names. Two runs that would continue alike, bit for bit, have the same one.
std::string hash_of_state(const std::string& folder, const Manifest& manifest);

/// A tensor that two checkpoints do not have alike.
struct StateDifference {
  int rank = 0;
  std::string name;
  /// `is missing in the first`, `has another type`, or the largest difference.
  std::string text;
};

/// Compares the state of all ranks of two checkpoints with as many ranks.
std::vector<StateDifference> differences_of(const std::string& first, const std::string& second,
                                            int world_size);

}  // namespace gossamer

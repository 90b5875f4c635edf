#pragma once
// What every backend must do, as functions that all ranks of a run call together. The threads
// backend runs them under GoogleTest for several numbers of ranks, MPI under mpirun.

#include <functional>
#include <span>
#include <stdexcept>
#include <string_view>

#include "base/text.hpp"
#include "comm/communicator.hpp"

namespace gossamer {

struct ConformanceCase {
  std::string_view name;
  /// Throws std::runtime_error when something is not as it should be.
  void (*body)(Communicator& communicator);
};

std::span<const ConformanceCase> conformance_cases();

/// Throws unless `condition` holds.
template <class... Args>
void require(bool condition, const Args&... what) {
  if (!condition) throw std::runtime_error(concat(what...));
}

}  // namespace gossamer

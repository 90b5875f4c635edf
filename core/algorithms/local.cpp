// Every rank trains alone. This baseline shows what communication costs.

#include "core/algorithms/algorithm.hpp"

namespace gossamer {

AlgorithmFactory read_local(const Options& /*options*/) {
  return [](const AlgorithmSetup&) { return std::make_unique<Algorithm>(); };
}

}  // namespace gossamer

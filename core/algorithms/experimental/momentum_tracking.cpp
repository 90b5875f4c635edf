// Momentum tracking (Takezawa et al., "Momentum Tracking: Momentum Acceleration for Decentralized
// Deep Learning on Heterogeneous Data", TMLR 2023). Every rank keeps a momentum u of its own
// gradients, and an estimate y of the mean momentum of all ranks. The optimizer uses y instead of
// the gradient (tracking.hpp):
//
//   u' = beta u + g,   y' = W y + u' - u,   x' = W x - u(y')

#include "core/algorithms/algorithm_options.hpp"
#include "core/algorithms/experimental/tracking.hpp"

namespace gossamer {

AlgorithmFactory read_momentum_tracking(const Options& options) {
  return make_tracking(
      {.beta = options.read(momentum_tracking::kBeta), .tracked = "local_momentum"});
}

}  // namespace gossamer

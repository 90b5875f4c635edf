// The kernels of passes that decode, encode or measure.

#include "optim/cuda/sweep.cuh"

namespace gossamer {

bool coded_sweep(const RuleRef& rule, const Stream& stream, std::span<const BlockUpdate> updates) {
  return sweep_one_of<true>(EverySweep(), rule, stream, updates);
}

void load_coded_sweeps() { load_sweeps<true>(EverySweep()); }

}  // namespace gossamer

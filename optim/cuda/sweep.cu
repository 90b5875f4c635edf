// The kernels of plain passes, and the choice between these and coded_sweep.cu.

#include "base/error.hpp"
#include "optim/cuda/sweep.cuh"

namespace gossamer {

void cuda_sweep(const RuleRef& rule, Stream& stream, const BlockUpdate& update) {
  const ExchangeWork& exchange = update.intake.exchange;
  if (exchange.copy.data != nullptr || exchange.sums || exchange.wait_for_more) {
    throw std::logic_error("cuda_sweep: work for slots, or for elements that have not arrived");
  }
  const bool is_done = codes(exchange) ? coded_sweep(rule, stream, update)
                                       : sweep_one_of<false>(EverySweep(), rule, stream, update);
  if (is_done) return;
  throw ConfigError("the optimizer's rule works on processors only; on GPUs take another one");
}

void cuda_mix(Stream& stream, BlockUpdate update) {
  for (Segment& segment : update.segments) {
    segment.gradient = {};
    segment.optimizer = nullptr;
  }
  update.decision = nullptr;
  constexpr NoRule kRule;
  cuda_sweep({.type = typeid(NoRule), .value = &kRule}, stream, update);
}

void cuda_load_kernels(Stream& stream) {
  const CudaDeviceScope scope(stream.device().index);
  load_conversions();
  load_reductions();
  load_sweeps<false>(EverySweep());
  load_coded_sweeps();
  load_summands();
}

}  // namespace gossamer

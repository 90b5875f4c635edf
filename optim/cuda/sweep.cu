// The kernels of plain passes, and the choice between these and coded_sweep.cu.

#include <algorithm>

#include "base/error.hpp"
#include "optim/cuda/sweep.cuh"

namespace gossamer {

namespace {

void require_work_for_gpus(const BlockUpdate& update) {
  const ExchangeWork& exchange = update.intake.exchange;
  if (exchange.copy.data == nullptr && !exchange.sums && !exchange.wait_for_more) return;
  throw std::logic_error("cuda_sweep: work for slots, or for elements that have not arrived");
}

}  // namespace

void cuda_sweep(const RuleRef& rule, Stream& stream, std::span<const BlockUpdate> updates) {
  std::ranges::for_each(updates, require_work_for_gpus);
  while (!updates.empty()) {
    const auto some = updates.first(num_alike(updates));
    const bool is_done = codes(some.front().intake.exchange)
                             ? coded_sweep(rule, stream, some)
                             : sweep_one_of<false>(EverySweep(), rule, stream, some);
    if (!is_done) {
      throw ConfigError("the optimizer's rule works on processors only; on GPUs take another one");
    }
    updates = updates.subspan(some.size());
  }
}

void cuda_mix(Stream& stream, std::vector<BlockUpdate> updates) {
  for (BlockUpdate& update : updates) {
    for (Segment& segment : update.segments) {
      segment.gradient = {};
      segment.optimizer = nullptr;
    }
    update.decision = nullptr;
  }
  constexpr NoRule kRule;
  cuda_sweep({.type = typeid(NoRule), .value = &kRule}, stream, updates);
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

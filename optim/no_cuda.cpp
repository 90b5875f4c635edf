// The functions of optim/cuda for builds without CUDA: all of them throw.

#include <stdexcept>

#include "optim/cuda/convert.hpp"
#include "optim/cuda/reductions.hpp"
#include "optim/cuda/summands.hpp"
#include "optim/cuda/swap_with_mean.hpp"
#include "optim/cuda/sweep.hpp"

namespace gossamer {
namespace {

[[noreturn]] void refuse() { throw std::logic_error("this program was built without CUDA"); }

}  // namespace

void cuda_sweep(const RuleRef&, Stream&, std::span<const BlockUpdate>) { refuse(); }
void cuda_load_kernels(Stream&) { refuse(); }
void cuda_mix(Stream&, std::vector<BlockUpdate>) { refuse(); }
void cuda_convert(Stream&, const Block&, const ConstBlock&) { refuse(); }
void cuda_squares(Stream&, const SquaresInput&) { refuse(); }
void cuda_flag(Stream&, const ConstBlock&, double*) { refuse(); }
void cuda_decisions(Stream&, const DecisionInput&) { refuse(); }
void cuda_norm(Stream&, const ConstBlock&, double, const double*, double*) { refuse(); }
void cuda_summands(Stream&, const SummandWork&) { refuse(); }
void cuda_swap_with_mean(Stream&, const SwapInput&) { refuse(); }

}  // namespace gossamer

#include "core/torch/orthogonalize.hpp"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/types.h>

#include "core/torch/torch_stream.hpp"

namespace gossamer {

void torch_orthogonalize(const MatrixBlock& matrix, const NewtonSchulz& how) {
  const torch::NoGradGuard no_grad;
  // A backward pass may be under autocast, which would make the products in half precision.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Block& block = matrix.block;
  const auto type = block.dtype == DType::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  torch::Tensor result =
      torch::from_blob(block.data, {matrix.rows, matrix.cols},
                       torch::TensorOptions(torch_device(block.device)).dtype(type));
  torch::Tensor x = result.to(how.in_bfloat16 ? torch::kBFloat16 : type, /*non_blocking=*/false,
                              /*copy=*/true);
  const bool is_tall = matrix.rows > matrix.cols;
  if (is_tall) x = x.t();
  x.div_(x.norm().clamp_min(how.eps));
  for (int i = 0; i < how.num_steps; ++i) {
    const torch::Tensor gram = x.mm(x.t());
    const torch::Tensor factor = torch::addmm(gram, gram, gram, how.b, how.c);
    x = torch::addmm(x, factor, x, how.a);
  }
  result.copy_(is_tall ? x.t() : x);
}

}  // namespace gossamer

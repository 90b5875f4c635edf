#include "apps/train/model_ema.hpp"

#include <cstddef>
#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "base/text.hpp"

namespace gossamer::apps {

ModelEma::ModelEma(const torch::nn::Module& module, double decay)
    : decay_(decay), parameters_(collect_tensors(module).trainable) {
  for (const NamedTensor& parameter : parameters_) {
    averages_.push_back(parameter.tensor.detach().to(torch::kFloat32, /*non_blocking=*/false,
                                                     /*copy=*/true,
                                                     torch::MemoryFormat::Contiguous));
  }
}

void ModelEma::update(double weight) {
  const torch::NoGradGuard no_grad;
  for (std::size_t p = 0; p < averages_.size(); ++p) {
    const torch::Tensor own = parameters_[p].tensor.detach().to(torch::kFloat32);
    averages_[p].lerp_(weight == 1.0 ? own : own * weight, 1.0 - decay_);
  }
}

std::vector<torch::Tensor> ModelEma::means(Communicator& communicator, double weight) const {
  std::vector<torch::Tensor> sums;
  std::vector<Request> requests;
  for (const torch::Tensor& average : averages_) {
    // The communicator of the host reaches host memory alone.
    torch::Tensor own = average.to(torch::kCPU);
    // A rank without weight may hold values that are not finite.
    if (weight == 0.0) {
      own = torch::zeros_like(own);
    } else if (weight != 1.0) {
      own = own * weight;
    }
    const torch::Tensor& sum = sums.emplace_back(torch::empty_like(own));
    requests.push_back(communicator.all_reduce_sum(
        block_of_tensor(own), block_of_tensor(sum),
        {.label = {.what = "average"},
         .owner =
             both(std::make_shared<torch::Tensor>(own), std::make_shared<torch::Tensor>(sum))}));
  }
  for (std::size_t p = 0; p < sums.size(); ++p) {
    requests[p].wait();
    sums[p] /= communicator.size();
  }
  return sums;
}

void ModelEma::use(Communicator& communicator) const {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> shared = means(communicator, 1.0);
  for (std::size_t p = 0; p < shared.size(); ++p) {
    parameters_[p].tensor.detach().copy_(shared[p]);
  }
}

void ModelEma::share(Communicator& communicator, double weight) {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> shared = means(communicator, weight);
  for (std::size_t p = 0; p < shared.size(); ++p) averages_[p].copy_(shared[p]);
}

void ModelEma::visit(StateVisitor& visitor) {
  for (std::size_t p = 0; p < averages_.size(); ++p) {
    torch::Tensor values = averages_[p].to(torch::kCPU);
    visitor.block(concat("ema/", parameters_[p].name), block_of_tensor(values));
    if (visitor.loads()) averages_[p].copy_(values);
  }
}

}  // namespace gossamer::apps
